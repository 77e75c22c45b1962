"""One runner of a group: joins, leads or follows, and begins again when the group changes."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

from headrace.learner.experiments.live.group.agreement import Place
from headrace.learner.experiments.live.group.group_arms import (
    GroupArms,
    Reassigned,
    Stopped,
    UnsharedFolder,
)
from headrace.learner.experiments.live.group.group_folder import (
    FollowerFolder,
    LeaderFolder,
    group_id,
    models_of,
    new_group_id,
)
from headrace.learner.experiments.live.group.group_ports import GroupRecord
from headrace.learner.experiments.live.live_run import LiveRun
from headrace.learner.experiments.run_folder import BusyExperiment, OtherExperiment

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.ingest.kafka import Writer
    from headrace.learner.experiments.experiment_file import Experiment
    from headrace.learner.experiments.history import ExperimentProgress, ExperimentResult
    from headrace.learner.experiments.live.group.group_ports import GroupPorts
    from headrace.learner.experiments.live.history_topic import PublishedHistory
    from headrace.learner.experiments.live.topic_source import TopicSource

log = logging.getLogger(__name__)

_NEVER_S = float("inf")
_ASK_EVERY_S = 5.0
"""Whether Kafka still has the first examples."""


class GroupTask(NamedTuple):
    """The work of a group, and its edge."""

    experiment: Experiment
    folder: Path
    """Shared by all runners."""
    save_every_s: float
    writer: Writer
    published: Callable[[], PublishedHistory]
    """Reads the published history."""
    begins: Callable[[LeaderFolder, PublishedHistory], tuple[int, ...]]
    """Returns the first offsets of the examples."""
    open_source: Callable[[tuple[int, ...]], AbstractContextManager[TopicSource]]


class GroupMember:
    """One runner of a group."""

    def __init__(
        self,
        task: GroupTask,
        ports: GroupPorts,
        stop: threading.Event,
        tell: Callable[[ExperimentProgress], bool],
    ) -> None:
        """`tell`: takes the progress; returns whether the experiment was asked to stop."""
        self._task, self._ports, self._stop, self._tell = task, ports, stop, tell
        self._save_at_s = ports.now_s() + task.save_every_s

    def run(self) -> ExperimentResult | None:
        """Run until the experiment ends, or until `stop` is set (None).

        Raises UnsharedFolder, OtherExperiment.
        """
        while not self._stop.is_set():
            tokens = self._ports.membership.tokens()
            if not tokens:
                self._ports.pause()
                continue
            try:
                with ExitStack() as stack:
                    return self._turn(tokens, stack)
            except Reassigned:
                log.info("the group changed: continuing with the last saved state")
            except Stopped:
                return None
        return None

    def _turn(self, tokens: frozenset[int], stack: ExitStack) -> ExperimentResult | None:
        """Run while the group stays as it is."""
        task, leads = self._task, 0 in tokens
        folder = self._locked(tokens) if leads else FollowerFolder(task.folder)
        stack.enter_context(closing(folder))
        record = self._joined(tokens, folder)
        source = stack.enter_context(task.open_source(tuple(record.offsets)))
        source.identity += " in a group"
        arms = GroupArms(
            *(self._ports, record.folder, tokens, task.experiment),
            *(models_of(task.folder), self._stop),
        )
        arms.whole = _Whole(source.whole, self._ports.now_s)
        source.order = arms
        live = LiveRun(
            *(task.experiment, source, folder, _NEVER_S),
            arms=arms,
            still_whole=lambda: arms.place.new_arms,
        )
        arms.begin_at(folder.place or Place(offset=record.sums))
        if isinstance(folder, LeaderFolder) and live.runner.resumed:
            folder.publish()  # a kill may have come between save and publication
        result = live.run(self._stop, self._between_steps(live, arms, folder))
        if result is not None:
            if isinstance(folder, LeaderFolder):
                folder.saving = arms.place
                live.runner.save()
                arms.propose("done")
            else:
                arms.await_done()
        return result

    def _between_steps(
        self, live: LiveRun, arms: GroupArms, folder: LeaderFolder | FollowerFolder
    ) -> Callable[[ExperimentProgress], bool]:
        saved_step = arms.place.step

        def commit(place: Place) -> None:
            nonlocal saved_step
            assert isinstance(folder, LeaderFolder)
            folder.saving, saved_step = place, place.step
            live.runner.save()

        def act() -> None:
            arms.act(lambda: live.runner.learning, commit)

        def between(progress: ExperimentProgress) -> bool:
            asked = self._tell(progress)
            act()
            if arms.may_propose and not arms.stopping:
                if asked and not live.replays:
                    arms.propose("stop")
                    act()
                elif arms.place.step != saved_step and self._ports.now_s() >= self._save_at_s:
                    arms.propose("save")
                    act()
                    self._save_at_s = self._ports.now_s() + self._task.save_every_s
            return arms.stopping

        return between

    def _locked(self, tokens: frozenset[int]) -> LeaderFolder:
        """Return the folder once no former leader writes to it."""
        task, told = self._task, False
        while True:
            try:
                name = task.experiment.name
                return LeaderFolder(task.folder, task.writer, name, task.published())
            except BusyExperiment:
                if not told:
                    log.info("waiting for the former leader to leave %s", task.folder)
                told = True
                self._wait(tokens)

    def _joined(self, tokens: frozenset[int], folder: LeaderFolder | FollowerFolder) -> GroupRecord:
        """Return the record of the group, which the first leader publishes."""
        task = self._task
        while (record := self._ports.registry.read()) is None:
            if isinstance(folder, LeaderFolder):
                record = self._published(folder)
                break
            self._wait(tokens)
        own = group_id(task.folder)
        if own != record.folder:
            raise UnsharedFolder(
                f"--to {task.folder}: expected the folder of the group that runs experiment "
                f"{task.experiment.name}, {record.folder}, got {own or 'another one'}. Give --to "
                "the folder that all runners of the group share, or start again with --restart"
            )
        if record.experiment != task.experiment.fingerprint:
            raise OtherExperiment(
                f"experiment {task.experiment.name}: expected the experiment file and control of "
                "the other runners in the group, got others. Give all runners the same files"
            )
        return record

    def _published(self, folder: LeaderFolder) -> GroupRecord:
        """Begin the group, and publish its record."""
        task = self._task
        own = group_id(task.folder)
        if own is None and folder.begun:
            raise OtherExperiment(
                f"--to {task.folder}: expected a folder of a group, got a run without --group. "
                "Give --to another folder, or start again with --restart"
            )
        record = GroupRecord(
            folder=own or new_group_id(task.folder),
            experiment=task.experiment.fingerprint,
            offsets=list(task.begins(folder, task.published())),
            sums=self._ports.log.end(),
        )
        self._ports.registry.write(record)
        return record

    def _wait(self, tokens: frozenset[int]) -> None:
        if self._stop.is_set():
            raise Stopped
        if self._ports.membership.tokens() != tokens:
            raise Reassigned
        self._ports.alive()
        self._ports.pause()


class _Whole:
    """Whether the log still has its first examples: retention never gives back what it deleted."""

    def __init__(self, ask: Callable[[], bool], now_s: Callable[[], float]) -> None:
        self._ask, self._now_s = ask, now_s
        self._whole, self._next_s = True, now_s()

    def __call__(self) -> bool:
        """Return the answer, which is asked for now and then."""
        if self._whole and self._now_s() >= self._next_s:
            self._whole, self._next_s = self._ask(), self._now_s() + _ASK_EVERY_S
        return self._whole
