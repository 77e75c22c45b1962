"""The arms of an experiment, learned by tasks; the runner takes their scores block by block.

A round gives one task to every arm whose next chunk is not learned, in all cohorts together. The
next chunk of the log is staged meanwhile. Checkpoints are files:

    FOLDER/arm-00003/chunk-00000012.pickle    scores of chunk 11, and the model after it

A save of the runner keeps, for each arm that learns, the checkpoint that its position begins with,
and those behind it. It keeps the last checkpoint of the best arms that ended, and removes others.
"""

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.fields import FieldSet
from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.executors.arm_task import ArmTask, BlockScores
from headrace.learner.experiments.executors.staged_log import StagedLog
from headrace.learner.experiments.history import EndedArm
from headrace.learner.experiments.losses import Settled

Execute = Callable[[Sequence[ArmTask]], list[BlockScores]]
"""Runs tasks; returns their results in the same order."""
ArmsAtPlace = tuple[Any, list[Arm]]
"""A position of the staged log, and the arms there."""


class RemoteArms:
    """Scores of arms that tasks learn."""

    def __init__(
        self, log: StagedLog, folder: Path, given: FieldSet, execute: Execute, keep_best: int = 1
    ) -> None:
        """`given`: the fields of the staged examples. `keep_best`: arms that keep a checkpoint."""
        self._log, self._folder, self._given = log, folder, given
        self._execute, self._keep_best = execute, keep_best
        self._scores: dict[int, tuple[int, BlockScores]] = {}
        """Arm -> a chunk, and the scores of its blocks."""

    def prepare(self, places: Sequence[ArmsAtPlace]) -> None:
        """Learn the next chunk of the arms at the first place.

        The arms at other places learn their next chunks meanwhile, if needed.
        """
        (chunk, block), arms = places[0]
        lacking = any(self._lacks(arm.plan.number, chunk) for arm in arms)
        if lacking and self._log.has(chunk, block):
            self._run_round(places)

    def step(self, place: ArmsAtPlace, examples: Examples, settled: Sequence[Settled]) -> None:
        """Step the arms at a place through the next block."""
        (_, block), arms = place
        for arm in arms:
            arm.step(examples, settled, self._scores[arm.plan.number][1][block])

    def clean(self, learning: Iterable[ArmsAtPlace], ended: Iterable[EndedArm]) -> None:
        """Remove the checkpoints that neither an arm that learns nor one of the best needs."""
        needed = {arm.plan.number: place[0] for place, arms in learning for arm in arms}
        for number in set(self._scores) - set(needed):
            del self._scores[number]
        ranked = [each.number for each in sorted(ended, key=_rank)]
        for folder in self._folder.glob("arm-*"):
            number, files = int(folder.name.partition("-")[2]), sorted(folder.glob("*.pickle"))
            if number in needed:
                first = self._checkpoint(number, needed[number])
                files = [file for file in files if file < first]
            elif number in ranked[: self._keep_best]:
                files = files[:-1]
            elif number in ranked:
                shutil.rmtree(folder)
                continue
            else:
                continue  # the control, or an arm of lost work that begins again
            for file in files:
                file.unlink()

    def _checkpoint(self, number: int, chunk: int) -> Path:
        """Return the checkpoint of an arm that its chunk `chunk` begins with."""
        return self._folder / f"arm-{number:05}" / f"chunk-{chunk:08}.pickle"

    def _lacks(self, number: int, chunk: int) -> bool:
        return number not in self._scores or self._scores[number][0] != chunk

    def _run_round(self, places: Sequence[ArmsAtPlace]) -> None:
        tasks: dict[int, tuple[int, ArmTask]] = {}
        for (chunk, block), arms in places:
            lacking = [arm for arm in arms if self._lacks(arm.plan.number, chunk)]
            # an arm behind its last chunk has nothing to learn
            if not lacking or not self._log.has(chunk, block):
                continue
            tasks |= {arm.plan.number: (chunk, self._task(arm, chunk)) for arm in lacking}
        furthest = max(chunk for chunk, _ in tasks.values())
        run = [task for _, task in tasks.values()]
        results = self._log.staged_meanwhile(furthest + 1, lambda: self._execute(run))
        for (number, (chunk, _)), scores in zip(tasks.items(), results, strict=True):
            self._scores[number] = chunk, scores

    def _task(self, arm: Arm, chunk: int) -> ArmTask:
        number = arm.plan.number
        before = self._checkpoint(number, chunk) if chunk else None
        after = self._checkpoint(number, chunk + 1)
        return ArmTask(arm.plan.spec, self._given, self._log.path_of(chunk), before, after)


def _rank(arm: EndedArm) -> tuple[int, float, int]:
    """Order arms: the one that came furthest first, then the lowest difference."""
    difference = math.inf if math.isnan(arm.difference) else arm.difference
    return -arm.examples, difference, arm.number
