"""The arms of an experiment, learned by tasks; the runner takes their scores block by block.

A round gives one task to every arm whose next chunk is not learned, in all cohorts together. The
next chunk of the log is staged meanwhile. Checkpoints are files:

    FOLDER/arm-00003/chunk-00000012.pickle    scores of chunk 11, and the model behind it

A save of the runner keeps, for each arm that learns, the checkpoint that its position begins with,
and those behind it. It keeps the last checkpoint of the best arms that ended, and removes others.
"""

from __future__ import annotations

import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from headrace.learner.experiments.executors.arm_task import ArmTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from headrace.ingest.features import FieldSet
    from headrace.learner.experiments.arm import Arm
    from headrace.learner.experiments.executors.arm_task import BlockScores
    from headrace.learner.experiments.executors.staged_log import StagedLog

    ArmsAtPlace = tuple[Any, list[Arm]]
    """A position of the staged log, and the arms there."""
    Execute = Callable[[Sequence[ArmTask]], list[BlockScores]]
    """Runs tasks; returns their results in the same order."""


class FinishedArm(Protocol):
    """An arm that ended."""

    @property
    def examples(self) -> int:
        """Learned."""

    @property
    def difference(self) -> float:
        """Mean paired difference to the control; NaN if unknown."""

    @property
    def number(self) -> int:
        """Number of the arm."""


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

    def scores(self, places: Sequence[ArmsAtPlace]) -> Mapping[int, npt.NDArray[np.float64]]:
        """Return arm -> scores of the next block, for the arms at the first place.

        The arms at other places learn their next chunks meanwhile, if needed.
        """
        (chunk, block), arms = places[0]
        if any(self._lacks(arm.plan.number, chunk) for arm in arms):
            self._run_round(places)
        return {arm.plan.number: self._scores[arm.plan.number][1][block] for arm in arms}

    def clean(self, learning: Iterable[ArmsAtPlace], ended: Iterable[FinishedArm]) -> None:
        """Remove the checkpoints that neither an arm that learns nor one of the best needs."""
        needed = {arm.plan.number: place[0] for place, arms in learning for arm in arms}
        for number in set(self._scores) - set(needed):
            del self._scores[number]
        ranked = [each.number for each in sorted(ended, key=_rank)]
        kept, over = ranked[: self._keep_best], ranked[self._keep_best :]
        for folder in self._folder.glob("arm-*"):
            number = int(folder.name.partition("-")[2])
            files = sorted(folder.glob("chunk-*.pickle"))
            if number in needed:
                files = [each for each in files if each.name < _name(needed[number])]
            elif number in kept:
                files = files[:-1]
            elif number in over:
                shutil.rmtree(folder)
                continue
            else:
                continue  # the control, or an arm of lost work that begins again
            for file in files:
                file.unlink()

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
        with ThreadPoolExecutor(1) as beside:
            staged = beside.submit(self._log.stage, furthest + 1)
            made = self._execute([task for _, task in tasks.values()])
            staged.result()
        for (number, (chunk, _)), scores in zip(tasks.items(), made, strict=True):
            self._scores[number] = chunk, scores

    def _task(self, arm: Arm, chunk: int) -> ArmTask:
        folder = self._folder / f"arm-{arm.plan.number:05}"
        before = folder / _name(chunk) if chunk else None
        after = folder / _name(chunk + 1)
        return ArmTask(arm.plan.spec, self._given, self._log.path_of(chunk), before, after)


def _name(chunk: int) -> str:
    return f"chunk-{chunk:08}.pickle"


def _rank(arm: FinishedArm) -> tuple[int, float, int]:
    """Order arms: the one that came furthest first, then the lowest difference."""
    difference = math.inf if math.isnan(arm.difference) else arm.difference
    return -arm.examples, difference, arm.number
