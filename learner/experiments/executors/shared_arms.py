"""The arms of a search that several machines share.

Each machine runs the same runner over its own copy of the log, and makes all decisions itself. It
does not repeat the learning: one machine learns an arm, and publishes the sums of its losses chunk
by chunk (`shared_study`). The runners add them up as the serial runner does. All histories
therefore have the same bytes, whichever machine learned an arm and in which order arms were done.

A machine claims an arm when it has nothing else to learn, and keeps it until the arm ends. If the
machine is lost, another one claims the arm and learns it from the first example, or from its own
last checkpoint. An arm is a function of its spec and of the log, so its losses stay the same.

*Refused:* rungs that compare an arm with those that happen to have arrived, as ASHA was published.
No machine would ever wait, but two runs of one file would keep other arms. Here, a machine waits
for the arms that are furthest behind, and learns other arms meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.executors.checkpoints import checkpoint_path, clean_checkpoints
from headrace.learner.experiments.executors.shared_task import SharedTask, checksum_of
from headrace.learner.experiments.executors.staged_log import read_chunk

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from headrace.ingest.examples import Examples
    from headrace.learner.experiments.arm import Arm
    from headrace.learner.experiments.executors.checkpoints import FinishedArm
    from headrace.learner.experiments.executors.shared_task import ChunkSums
    from headrace.learner.experiments.executors.staged_log import StagedLog
    from headrace.learner.experiments.executors.tasks import ArmsAtPlace
    from headrace.learner.experiments.experiment_file import ArmPlan, Experiment
    from headrace.learner.experiments.losses import Settled

    Execute = Callable[[Sequence[SharedTask]], list[ChunkSums]]
    """Runs tasks; returns their results in the same order."""

_POLL_S = 0.3
"""Time between two looks at the study while other machines learn."""


class OtherData(LearnerError):
    """Another machine of the search learned other examples."""


class ClaimedArms(Protocol):
    """Claims of arms, and published losses, which machines share."""

    def claim(self, plans: Sequence[ArmPlan], most: int) -> list[int]:
        """Return arms of this machine, with claims of free ones until there are `most`."""

    def publish(self, number: int, chunk: int, sums: ChunkSums) -> None:
        """Publish the losses of an arm, unless another machine has claimed it since."""

    def published(self, plan: ArmPlan, chunk: int) -> ChunkSums | None:
        """Return the losses of an arm; None if they are not published."""

    def refresh(self) -> None:
        """Read what other machines wrote."""

    def end(self, number: int, examples: int, difference: float, *, at_end: bool) -> None:
        """Record the end of an arm; `at_end`: with the log."""


class SharedArms:
    """Arms whose losses come from a shared study."""

    def __init__(
        self,
        experiment: Experiment,
        log: StagedLog,
        folder: Path,
        execute: Execute,
        claims: ClaimedArms,
        *,
        workers: int = 1,
        keep_best: int = 1,
    ) -> None:
        """`workers`: arms learned at the same time. `keep_best`: arms that keep a checkpoint."""
        self._experiment, self._log, self._folder = experiment, log, folder
        self._execute, self._claims = execute, claims
        self._workers, self._keep_best = workers, keep_best
        self._sums: dict[int, tuple[int, ChunkSums]] = {}
        """Arm -> a chunk, and the losses in it."""
        self._checksum = -1, 0
        """A chunk, and the checksum of its examples."""

    def prepare(self, places: Sequence[ArmsAtPlace], stop: threading.Event) -> bool:
        """Learn and wait until the arms at the first place have losses; False: stopped before."""
        (chunk, _), arms = places[0]
        while self._lacking(chunk, arms):
            if stop.is_set():
                return False
            self._claims.refresh()
            if self._lacking(chunk, arms) and not self._learn(places):
                stop.wait(_POLL_S)
        return True

    def step(
        self, places: Sequence[ArmsAtPlace], examples: Examples, settled: Sequence[Settled]
    ) -> None:
        """Take the losses of the next block, for the arms at the first place."""
        (_, block), arms = places[0]
        for arm in arms:
            arm.follow(len(examples), settled, self._sums[arm.plan.number][1].blocks[block])

    def flush(self, place: ArmsAtPlace, settled: Sequence[Settled]) -> None:
        """Take the losses of the outcomes that remain at the end of the log."""
        for arm in place[1]:
            arm.follow(0, settled, self._sums[arm.plan.number][1].blocks[-1])

    def end(self, ended: FinishedArm, *, at_end: bool) -> None:
        """Record in the study that an arm ended."""
        self._sums.pop(ended.number, None)
        self._claims.end(ended.number, ended.examples, ended.difference, at_end=at_end)

    def clean(self, learning: Iterable[ArmsAtPlace], ended: Iterable[FinishedArm]) -> None:
        """Remove the checkpoints that this machine no longer needs."""
        needed = {arm.plan.number: place[0] for place, arms in learning for arm in arms}
        clean_checkpoints(self._folder, needed, ended, self._keep_best)

    def _lacking(self, chunk: int, arms: Sequence[Arm]) -> list[Arm]:
        """Return the arms whose losses in a chunk are not published."""
        lacking = []
        for arm in arms:
            number = arm.plan.number
            if number in self._sums and self._sums[number][0] == chunk:
                continue
            found = self._claims.published(arm.plan, chunk)
            if found is None:
                lacking.append(arm)
                continue
            self._check(chunk, found, arm.plan)
            self._sums[number] = chunk, found
        return lacking

    def _check(self, chunk: int, found: ChunkSums, plan: ArmPlan) -> None:
        """Raise OtherData unless the losses are those of the examples of this machine."""
        if self._checksum[0] != chunk:
            self._log.stage(chunk)
            self._checksum = chunk, checksum_of(read_chunk(self._log.path_of(chunk)))
        if found.checksum != self._checksum[1]:
            raise OtherData(
                f"--data: expected the examples that the other machines of experiment "
                f"{self._experiment.name} learn, got other ones in chunk {chunk} (arm "
                f"{plan.name}). Give all machines the same files, in the same order"
            )

    def _learn(self, places: Sequence[ArmsAtPlace]) -> bool:
        """Learn some arms, and publish their losses; False: all are other machines'."""
        wanted: dict[int, tuple[ArmPlan, int]] = {}
        for (chunk, _), arms in places:
            for arm in self._lacking(chunk, arms):
                wanted[arm.plan.number] = arm.plan, chunk
        mine = self._claims.claim([plan for plan, _ in wanted.values()], self._workers)
        if not mine:
            return False
        for number in mine:
            self._log.stage(wanted[number][1])
        tasks = [self._task(*wanted[number]) for number in mine]
        furthest = max(wanted[number][1] for number in mine)
        made = self._log.staged_meanwhile(furthest + 1, lambda: self._execute(tasks))
        for number, sums in zip(mine, made, strict=True):
            self._claims.publish(number, wanted[number][1], sums)
        return True

    def _task(self, plan: ArmPlan, chunk: int) -> SharedTask:
        begin, before = chunk, None
        while begin:
            path = checkpoint_path(self._folder, plan.number, begin)
            if path.exists():
                before = path
                break
            begin -= 1
        return SharedTask(
            plan.spec,
            self._experiment.control.fields,
            self._experiment.control.fields.label.window_ms,
            self._experiment.rules.batch_ms,
            tuple(self._log.path_of(each) for each in range(begin, chunk + 1)),
            before,
            checkpoint_path(self._folder, plan.number, chunk + 1),
        )
