"""Experiments whose arms learn in tasks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.learner.experiments.executors.remote_arms import Execute, RemoteArms
from headrace.learner.experiments.executors.staged_log import StagedLog
from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.run_folder import RunFolder
from headrace.learner.experiments.runner import ExperimentRunner
from tests.learner.experiments.experiment_runs import ListedBlocks

CHUNK = 170
"""Examples: no multiple of the 50 of a block, nor of a rung."""


@contextmanager
def remote_runner(
    experiment: Experiment, log: ListedBlocks, path: Path, execute: Execute, save_every_s: float
) -> Iterator[ExperimentRunner]:
    """Yield a runner whose arms learn in tasks; unlock its folder after that."""
    folder = RunFolder(path)
    staged = StagedLog(log, path / "log", lambda _: CHUNK)
    remote = RemoteArms(staged, path / "arms", experiment.control.fields, execute)
    try:
        yield ExperimentRunner(experiment, staged, folder, save_every_s, remote=remote)
    finally:
        folder.close()


def run_remotely(experiment: Experiment, log: ListedBlocks, path: Path, execute: Execute) -> bytes:
    """Run to the end; return the history."""
    with remote_runner(experiment, log, path, execute, 1e9) as runner:
        assert runner.run(threading.Event(), lambda _: None) is not None
    return (path / "history.ndjson").read_bytes()
