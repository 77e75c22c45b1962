"""Learns files into a parameter server with several processes: `headrace fit --store`.

The examples are staged once (`staged_run`). Then each process learns staged files, one after
another, as learners of a model of this run in the parameter server. Each file is a source of its
own in the marks (`staged_file`), so a process or a whole fit that is killed and repeated counts
each example once. At the end, the rows are written as a snapshot, and the model of the run is
dropped. Learning into the parameter server changes no other model there.

Several machines can learn one run: each starts the same command with its part. The first stages,
learns files that a lost machine left, and writes the snapshot.

Files are learned at the same time, so the rows differ from those of one pass in order, and
accuracy falls with the number of processes, as with learners of a stream (docs/benchmarks.md).
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.learner.batch.partition_tasks import LearnTask, RunSpec
from headrace.learner.batch.run_store import ensure_model, folded, heads_of, rows_of, run_shape
from headrace.learner.batch.sources import UnreadableData
from headrace.learner.batch.staged_file import staged_places
from headrace.learner.batch.trainer import FitProgress, FitSummary
from headrace.learner.errors import LearnerError
from headrace.learner.local import InMemoryModel

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from headrace.learner.batch.fit_folder import FitFolder
    from headrace.learner.batch.sources import BatchSource
    from headrace.learner.batch.staged_run import StagedRun, StageFolder
    from headrace.learner.spec import ModelSpec
    from headrace.pserver import Shape, Store

    Tell = Callable[[FitProgress], object]

_POLL_S = 0.2


class WorkerFailed(LearnerError):
    """A process of a fit ended with an error."""


class Worker(Protocol):
    """A process that learns files; multiprocessing.Process is one."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""

    def terminate(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class StoreFitSettings:
    """Processes, machines and sizes."""

    epochs: int = 1
    workers: int = 1
    """Processes on this machine."""
    part: int = 1
    """Number of this machine, from 1."""
    parts: int = 1
    """Machines."""
    buckets: int = 16
    """Buckets of the model in the parameter server, a power of two."""
    rows_a_file: int = 500_000
    """Fewest rows of a staged file but the last. A process copies the model's rows for each."""


def run_name(model: str, token: str) -> str:
    """Return the name of a run's model in the parameter server."""
    return f"{model}-fit-{token}"


def start_process(task: LearnTask, numbers: Sequence[int]) -> Worker:
    """Start a process that learns the files with these numbers."""
    process = multiprocessing.get_context("spawn").Process(
        target=learn_files, args=(task, numbers), daemon=True
    )
    process.start()
    return process


def learn_files(task: LearnTask, numbers: Sequence[int]) -> None:
    """Learn the files with these numbers, one after another."""
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    for number in numbers:
        batch = pa.RecordBatch.from_pydict({"number": pa.array([number], pa.int64())})
        for _ in task(iter([batch])):
            pass


class StoreTrainer:
    """One fit into a parameter server: of a spec, from a source, into a folder."""

    def __init__(
        self,
        spec: ModelSpec,
        source: BatchSource,
        folders: tuple[FitFolder, StageFolder],
        connect: Callable[[str], Store],
        settings: StoreFitSettings,
        start: Callable[[LearnTask, Sequence[int]], Worker] = start_process,
    ) -> None:
        """`connect` opens the store of a model, in any process. Raises UnreadableData."""
        self._spec, self._source, self._connect = spec, source, connect
        self._folder, self._stage = folders
        self._settings, self._start = settings, start
        self._run = self._stage.read(spec, source.identity)
        self.resumed = self._run is not None
        """Whether the examples are staged already, by an earlier fit or another machine."""

    @property
    def refused(self) -> int:
        """Rows that the source left out."""
        return self._source.refused if self._run is None else self._run.refused

    def run(self, stop: threading.Event, tell: Tell) -> FitSummary | None:
        """Learn until the end; return None if `stop` was set, or if this is not the first part."""
        first = self._settings.part == 1
        if self._run is None:
            if not first:
                raise UnreadableData(
                    f"--part {self._settings.part}/{self._settings.parts}: expected the examples "
                    "that part 1 stages, got none. Start it once part 1 has staged them"
                )
            nothing = FitProgress(0, 0.0, 0, math.nan)
            self._run = self._stage.stage(
                *(self._spec, self._source, self._settings.rows_a_file, stop),
                lambda read: tell(nothing._replace(read=read)),
            )
        run = self._run
        if run is None:
            return None
        task = RunSpec(self._spec.text, run_name(self._spec.name, run.token))
        shape = run_shape(task.read(), self._settings.buckets)
        store = self._connect(task.name)
        try:
            shape = ensure_model(store, shape)
            if not first:
                self._learn(run, task, store, shape, stop, tell)
                return None
            with folded(self._connect(task.name), "headrace.fit"):
                if not self._learn(run, task, store, shape, stop, tell):
                    return None
                summary = self._finish(run, store, shape)
            store.drop()
            self._stage.remove()
            return summary
        finally:
            store.close()

    def _finish(self, run: StagedRun, store: Store, shape: Shape) -> FitSummary:
        model = InMemoryModel.of_rows(self._spec, rows_of(store, shape))
        name = self._folder.finish(model, run.marks)
        epochs = self._settings.epochs
        return FitSummary(name, len(model), sum(run.rows) * epochs, epochs, math.nan, None)

    def _learn(
        self,
        run: StagedRun,
        spec: RunSpec,
        store: Store,
        shape: Shape,
        stop: threading.Event,
        tell: Tell,
    ) -> bool:
        """Learn this machine's files of all epochs; return False if stopped."""
        settings = self._settings
        for epoch in range(settings.epochs):
            places = staged_places(self._stage.urls(run), run.token, epoch)
            task = LearnTask(spec, places, self._connect)
            learned = functools.partial(_rows_learned, task, store, shape)
            told = functools.partial(_tell, tell, epoch, run, learned)
            own = range(settings.part - 1, len(places), settings.parts)
            everything = range(len(places)) if settings.part == 1 else own
            for numbers in (own, everything):  # the second: what a lost machine left
                done = learned()
                undone = [k for k in numbers if done[k] < run.rows[k]]
                if undone and not self._learn_with_workers(task, undone, stop, told):
                    return False
        return True

    def _learn_with_workers(
        self,
        task: LearnTask,
        numbers: Sequence[int],
        stop: threading.Event,
        told: Callable[[], object],
    ) -> bool:
        """Learn files with processes; return False if stopped. Raises WorkerFailed."""
        count = min(self._settings.workers, len(numbers))
        workers = [self._start(task, numbers[k::count]) for k in range(count)]
        try:
            while any(each.exitcode is None for each in workers):
                if stop.wait(_POLL_S):
                    return False
                _check(workers)
                told()
            _check(workers)
        finally:
            for each in workers:
                if each.exitcode is None:
                    each.terminate()
                each.join()
        return True


def _check(workers: Sequence[Worker]) -> None:
    failed = [each.exitcode for each in workers if each.exitcode]
    if failed:
        raise WorkerFailed(
            f"expected the processes of the fit to end with 0, got {failed[0]}: their log has the "
            "error. Run the same command again: it continues"
        )


def _rows_learned(task: LearnTask, store: Store, shape: Shape) -> list[int]:
    """Return how many rows of each file all buckets have."""
    marks = [head.marks for head in heads_of(store, shape)]
    return [min(each.get(place.source, 0) for each in marks) for place in task.places]


def _tell(tell: Tell, epoch: int, run: StagedRun, learned: Callable[[], list[int]]) -> None:
    whole, done = sum(run.rows), sum(learned())
    tell(FitProgress(epoch, done / max(whole, 1), epoch * whole + done, math.nan))
