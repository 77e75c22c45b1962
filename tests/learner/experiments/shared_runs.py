"""Machines that share the search of a small experiment, as threads of this process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from headrace.learner.experiments.executors.execution import open_executor
from headrace.learner.experiments.executors.executor_kind import ExecutorKind
from headrace.learner.experiments.executors.shared_arms import SharedArms
from headrace.learner.experiments.executors.shared_study import SharedStudy
from headrace.learner.experiments.executors.staged_log import StagedLog
from headrace.learner.experiments.executors.study_storage import StudyAddress
from headrace.learner.experiments.run_folder import RunFolder
from headrace.learner.experiments.runner import ExperimentRunner
from tests.learner.experiments.executor_runs import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace.learner.experiments.executors.shared_task import ChunkSums
    from headrace.learner.experiments.experiment_file import Experiment
    from headrace.learner.experiments.history import ExperimentProgress
    from tests.learner.experiments.experiment_runs import ListedBlocks


class Killed(Exception):
    """The end of a process."""


class Machine:
    """One machine of a search."""

    def __init__(
        self, experiment: Experiment, log: ListedBlocks, path: Path, url: str, lease_s: float = 60.0
    ) -> None:
        self.learned: list[str] = []
        """Checkpoints that tasks wrote here."""
        self.path, self._experiment, self._log = path, experiment, log
        self._url, self._lease_s = url, lease_s
        self.study: SharedStudy | None = None

    def run(self, tell: Callable[[ExperimentProgress], object] = lambda _: None) -> bytes:
        """Run to the end; return the history."""
        folder = RunFolder(self.path)
        try:
            study = self.open(folder.machine)
            runner = self._runner(folder, study)
            assert runner.run(threading.Event(), tell) is not None
            study.close()
        finally:
            folder.close()
        return (self.path / "history.ndjson").read_bytes()

    def run_killed(self, after: int) -> None:
        """Run so many blocks, and vanish: the study is not closed, but the beat ends."""
        done = 0

        def tell(_: ExperimentProgress) -> None:
            nonlocal done
            done += 1
            if done == after:
                assert self.study is not None
                self.study.stop_beating()
                raise Killed

        self.run(tell)

    def run_stopped(self, stop: threading.Event) -> None:
        """Run until all arms have read the log, or `stop` is set, and stop before the ranks."""
        folder = RunFolder(self.path)
        study = self.open(folder.machine)
        runner = self._runner(folder, study, save_every_s=1e9)

        def tell(_: ExperimentProgress) -> None:
            if all(cohort.ended for cohort in runner._run.cohorts):
                stop.set()

        assert runner.run(stop, tell) is None
        study.close()
        folder.close()

    def open(self, name: str) -> SharedStudy:
        """Open the study as a machine."""
        self.study = SharedStudy(StudyAddress(self._url), self._experiment, name, self._lease_s)
        return self.study

    def _runner(
        self, folder: RunFolder, study: SharedStudy, save_every_s: float = 0.0
    ) -> ExperimentRunner:
        log = StagedLog(self._log, self.path / "log", lambda _: CHUNK, "on several machines")
        arms = SharedArms(self._experiment, log, self.path / "arms", self._execute, study)
        return ExperimentRunner(self._experiment, log, folder, save_every_s, remote=arms)

    def _execute(self, tasks: Sequence[Any]) -> list[ChunkSums]:
        self.learned += [str(task.after.relative_to(self.path)) for task in tasks]
        with open_executor(ExecutorKind.SERIAL) as execute:
            return execute(tasks)


def run_together(machines: Sequence[Machine]) -> list[bytes]:
    """Run machines at the same time; return their histories."""
    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(Machine.run, machines))
