"""Learns files into a parameter server with several processes: `headrace fit --store`.

The examples are staged once (`staged_run`). Then each process learns staged files, one after
another, as learners of a model of this run in the parameter server. Each file is a source of its
own in the marks (`staged_file`), so a process or a whole fit that is killed and repeated counts
each example once. At the end, the rows are written as a snapshot, and the model of the run is
dropped. Learning into the parameter server changes no other model there.

Several machines can learn one run: each starts the same command with its part. The first stages,
learns files that a lost machine left, and writes the snapshot.

With a held-out share, the first part decides after each epoch whether another follows, and the
other parts wait for its decision (`held_out_epochs`).

Files are learned at the same time, so the rows differ from those of one pass in order, and
accuracy falls with the number of processes, as with learners of a stream (docs/benchmarks.md).
"""

import functools
import itertools
import logging
import math
import multiprocessing
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.held_out_epochs import EpochDecision, add_scores, held_out_loss
from headrace.learner.batch.sources import BatchSource, UnreadableData
from headrace.learner.batch.store_fit.partition_tasks import LearnTask, RunSpec
from headrace.learner.batch.store_fit.run_store import (
    ensure_model,
    folded,
    heads_of,
    rows_of,
    run_shape,
)
from headrace.learner.batch.store_fit.staged_file import staged_places
from headrace.learner.batch.store_fit.staged_run import StagedRun, StageFolder
from headrace.learner.batch.trainer import FitProgress, FitSummary
from headrace.learner.errors import LearnerError
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.validation.log_loss_sum import LogLossSum, SharedLoss
from headrace.pserver.errors import MissingModel
from headrace.pserver.store import Shape, Store

Tell = Callable[[FitProgress], object]

log = logging.getLogger(__name__)
_POLL_S = 0.2
_POLL_DECISION_S = 1.0
"""Between two looks at the decision, which may be on object storage."""


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
    holdout: float = 0.0
    """Share of the data, at its end, that decides when to stop; 0: run all epochs."""
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


class _Model(NamedTuple):
    """The model of a run in the parameter server."""

    spec: RunSpec
    store: Store
    shape: Shape


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
        self._run = self._stage.read(spec, source.identity, settings.holdout)
        self._loss = LogLossSum()
        """The loss before learning in the processes of this machine, in the last epoch."""
        self.resumed = self._run is not None
        """Whether the examples are staged already, by an earlier fit or another machine."""

    @property
    def refusals(self) -> tuple[RefusedEvents, ...]:
        """The lines left out, by reason; empty until the examples are staged."""
        return () if self._run is None else self._run.refusals

    def run(self, stop: threading.Event, tell: Tell) -> FitSummary | None:
        """Learn until the end; return None if `stop` was set, or if this is not the first part.

        Raises UnreadableData if more than half of the rows are refused.
        """
        settings = self._settings
        if self._run is None:
            if settings.part > 1:
                raise UnreadableData(
                    f"--part {settings.part}/{settings.parts}: expected the examples that part 1 "
                    "stages, got none. Start it once part 1 has staged them"
                )
            nothing = FitProgress(0, 0.0, 0, math.nan)
            self._run = self._stage.stage(
                *(self._spec, self._source, settings.rows_a_file, stop),
                lambda read: tell(nothing._replace(read=read, staging=True)),
                settings.holdout,
            )
        run = self._run
        if run is None:
            return None
        spec = RunSpec(self._spec.text, run_name(self._spec.name, run.token))
        store = self._connect(spec.name)
        try:
            if settings.part > 1:
                self._follow(run, spec, store, stop, tell)
                return None
            shape = ensure_model(store, run_shape(spec.read(), settings.buckets))
            with folded(self._connect(spec.name), "headrace.fit"):
                summary = self._lead(run, _Model(spec, store, shape), stop, tell)
            if summary is not None:
                store.drop()
                self._stage.remove()
            return summary
        finally:
            store.close()

    def _lead(
        self, run: StagedRun, model: _Model, stop: threading.Event, tell: Tell
    ) -> FitSummary | None:
        """Run the first part: all epochs, the decisions, the snapshot."""
        epochs, decision = self._settings.epochs, self._stage.decision(run)
        for epoch in range(decision.decided, epochs):
            if decision.ended:
                break
            if not self._learn(run, model, epoch, stop, tell):
                return None
            if self._settings.holdout:
                decided = self._decide(run, model, epoch, stop)
                if decided is None:
                    return None
                decision = decided
        if self._settings.holdout:
            return self._finish_held_out(run, decision, stop, tell)
        learned = InMemoryModel.of_rows(self._spec, rows_of(model.store, model.shape))
        name = self._folder.finish(learned, run.marks)
        examples = sum(run.rows) * epochs
        losses = self._loss.normalized_entropy, None, self._loss.mean
        clicks = run.clicks_learned(epochs)
        return FitSummary(name, len(learned), examples, epochs, *losses, clicks, run.order)

    def _decide(
        self, run: StagedRun, model: _Model, epoch: int, stop: threading.Event
    ) -> EpochDecision | None:
        """Score the held-out examples after an epoch, and decide; None if `stop` was set."""
        learned = InMemoryModel.of_rows(self._spec, rows_of(model.store, model.shape))
        held_out = itertools.takewhile(
            lambda _: not stop.is_set(), self._stage.held_out(run, self._spec)
        )
        loss = held_out_loss(learned, held_out)
        if stop.is_set():
            return None
        before = self._stage.decision(run)
        if before.decided > epoch or before.ended:  # another process is the first part, too
            return before
        rows = self._stage.save(learned) if before.improves(loss) else before.rows
        decision = before.after(loss, rows, self._settings.epochs)
        self._stage.decide(decision)
        log.info(
            "epoch %d: log loss held out %.5f, lowest %.5f after epoch %d",
            *(decision.decided, loss, decision.best_loss or math.nan, decision.best),
        )
        return decision

    def _finish_held_out(
        self, run: StagedRun, decision: EpochDecision, stop: threading.Event, tell: Tell
    ) -> FitSummary | None:
        """Learn the held-out examples once, after the best epoch; None if `stop` was set."""
        if not decision.rows:  # the run is gone: another process, also the first part, has ended it
            return None
        learned, done = self._stage.load(decision.rows, self._spec), 0
        whole = sum(run.rows) - sum(run.epoch_rows)
        before = sum(run.epoch_rows) * decision.decided
        for examples in self._stage.held_out(run, self._spec):
            add_scores(self._loss, examples, learned.learn(examples))
            done += len(examples)
            entropy = self._loss.normalized_entropy
            tell(FitProgress(None, done / whole, before + done, entropy))
            if stop.is_set():
                return None
        name = self._folder.finish(learned, run.marks)
        told = len(learned), before + done, decision.best
        losses = self._loss.normalized_entropy, decision.best_loss, self._loss.mean
        return FitSummary(name, *told, *losses, run.clicks_learned(decision.decided), run.order)

    def _follow(
        self, run: StagedRun, spec: RunSpec, store: Store, stop: threading.Event, tell: Tell
    ) -> None:
        """Run another part: its files of each epoch that the first part begins."""
        if self._stage.decision(run).ended:
            return
        shape = ensure_model(store, run_shape(spec.read(), self._settings.buckets))
        try:
            for epoch in range(self._settings.epochs):
                if not self._begins(run, epoch, stop):
                    return
                if not self._learn(run, _Model(spec, store, shape), epoch, stop, tell):
                    return
        except (MissingModel, WorkerFailed):
            if not self._ended(run, store):
                raise  # else part 1 has learned these files

    def _ended(self, run: StagedRun, store: Store) -> bool:
        """Return whether the first part has ended the fit."""
        try:
            store.shape()
        except MissingModel:
            return True
        return self._stage.decision(run).ended

    def _begins(self, run: StagedRun, epoch: int, stop: threading.Event) -> bool:
        """Wait until an epoch begins; return False if the fit ended before, or if stopped."""
        told = False
        while True:
            decision = self._stage.decision(run)
            if decision.ended:
                return False
            if not self._settings.holdout or decision.decided >= epoch:
                return True
            if not told:
                log.info("epoch %d waits for the decision of part 1", epoch + 1)
                told = True
            if stop.wait(_POLL_DECISION_S):
                return False

    def _learn(
        self, run: StagedRun, model: _Model, epoch: int, stop: threading.Event, tell: Tell
    ) -> bool:
        """Learn this machine's files of an epoch; return False if stopped."""
        part, parts = self._settings.part, self._settings.parts
        rows = run.epoch_rows
        places = staged_places(self._stage.urls(run)[: len(rows)], run.token, epoch)
        shared = SharedLoss(len(places))
        task = LearnTask(model.spec, places, self._connect, shared)
        learned = functools.partial(_rows_learned, task, model.store, model.shape)

        def told() -> None:
            self._loss, done = shared.total(), sum(learned())
            share, entropy = done / max(sum(rows), 1), self._loss.normalized_entropy
            tell(FitProgress(epoch, share, epoch * sum(rows) + done, entropy))

        told()
        own = range(part - 1, len(places), parts)
        everything = range(len(places)) if part == 1 else own
        for numbers in (own, everything):  # the second: what a lost machine left
            done = learned()
            undone = [k for k in numbers if done[k] < rows[k]]
            if undone and not self._learn_with_workers(task, undone, stop, told):
                return False
        told()
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
