"""Executors of arm tasks: local processes or Spark.

Each one runs a round of tasks and returns their results in order. A worker that dies fails its
round's unfinished tasks only: they run again, and complete checkpoints are read. Spark tasks on
other machines need the run's folder at the same path there.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.executors.arm_task import ArmTask, BlockScores, run_arm_task
from headrace.learner.experiments.executors.executor_kind import ExecutorKind
from headrace.learner.experiments.executors.remote_arms import Execute
from headrace.runtime.affinity import available_cores

_ATTEMPTS = 4
"""Of a round; Spark tries a task as often by default."""


@contextmanager
def open_executor(kind: ExecutorKind, workers: int = 0) -> Iterator[Execute]:
    """Yield an executor. `workers`: processes; 0: one per core. Raises LearnerError."""
    if kind is ExecutorKind.SPARK:
        yield _spark()
    else:
        with _Processes(workers or available_cores()) as processes:
            yield processes.run


class _Processes:
    """Local processes, replaced when one of them dies."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = self._started()

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(self, tasks: Sequence[ArmTask]) -> list[BlockScores]:
        """Run a round. Raises LearnerError if processes die again and again."""
        for _ in range(_ATTEMPTS):
            try:
                return list(self._pool.map(run_arm_task, tasks))
            except BrokenProcessPool:
                self._pool.shutdown(cancel_futures=True)
                self._pool = self._started()
        raise LearnerError(
            f"--executor processes: expected the tasks of a round to end, got {_ATTEMPTS} attempts "
            "whose processes were killed. Give fewer --workers if memory is short"
        )

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._count, context, initializer=_leave_signals_to_runner)


def _leave_signals_to_runner() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _spark() -> Execute:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise LearnerError(
            "--executor spark: expected the package pyspark, got none: pip install "
            "'headrace[spark]'"
        ) from error
    context = SparkSession.builder.getOrCreate().sparkContext

    def run(tasks: Sequence[ArmTask]) -> list[BlockScores]:
        return list(context.parallelize(tasks, len(tasks)).map(run_arm_task).collect())

    return run
