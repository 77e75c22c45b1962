"""Learns the blocks of a source: epochs, a held-out tail, early stopping, and resuming.

One thread reads, others encode, and one learns, in the order of the source. A fit of one epoch
therefore makes the rows that a stream of the same examples would make, bit for bit. Deep models
with large mini-batches, other than Wide & Deep and DeepFM, may differ by rounding: their layers are
computed by several threads here, and by one in a stream.

*Refused:* several learner threads or processes, each with a copy of the rows, that exchange what
their rows gained after each round. The kernels release the lock of the interpreter, so threads run
at the same time. But rows that every example has take the steps of all threads at once, and the
model diverges. Normalized entropy of logistic regression over 200,000 rows: one thread 0.869, two
0.870 to 0.873, four 0.919 (256 rows a round and thread) to 4.6 (4,096 rows). A factorization
machine: 0.906; two 0.919 to 0.940. Each round also costs time: 2.6 times the processor time an
example with 256 rows. Threads that write to one table without locks would lose counts.

With a held-out share, the last blocks are scored after every epoch and not learned. When their log
loss no longer falls, the fit takes the rows of the best epoch and learns the tail once. A learner
that continues online then starts after the last example.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.batch.fit_folder import FitFolder, FitState
from headrace.learner.batch.held_out_epochs import add_scores, held_out_loss
from headrace.learner.batch.prefetch import read_ahead
from headrace.learner.batch.row_order import RowOrder
from headrace.learner.batch.sources import (
    BatchSource,
    ExampleBlock,
    FilePosition,
    merged_refusals,
    mostly_refused,
    split_at,
)
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.models.factory import layer_threads
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.validation.log_loss_sum import LogLossSum
from headrace.runtime.affinity import available_cores


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Epochs, held-out data, and intervals."""

    epochs: int = 1
    """Most passes over the data."""
    holdout: float = 0.0
    """Share of the data, at its end, that decides when to stop; 0: run all epochs."""
    save_every_s: float = 60.0
    """Seconds of learning between two saved states."""
    tell_every_s: float = 0.5


class FitProgress(NamedTuple):
    """Progress of a fit."""

    epoch: int | None
    """From 0; None while the held-out tail is learned."""
    read: float
    """Share of the epoch, 0 to 1."""
    examples: int
    """Learned since the fit began, all epochs together."""
    normalized_entropy: float
    """Accuracy of the scores made before learning, in this epoch so far; NaN if undefined."""
    staging: bool = False
    """Whether the examples are written to files, before any is learned."""


class FitSummary(NamedTuple):
    """The result of a fit."""

    snapshot: str
    rows: int
    """Of the model."""
    examples: int
    """Learned, all epochs together."""
    epochs: int
    """Epochs that the model has learned."""
    normalized_entropy: float
    """Accuracy of the scores made before learning, in the last epoch of this process. With several
    machines: of the files that this one learned."""
    held_out_loss: float | None
    """Log loss of the held-out tail after the best epoch."""
    log_loss: float = math.nan
    """Log loss of the scores made before learning, as `normalized_entropy`."""
    clicks: int = 0
    """Examples with a click."""
    order: RowOrder = RowOrder()


class BatchTrainer:
    """One fit: of a spec, from a source, into a folder."""

    def __init__(
        self, spec: ModelSpec, source: BatchSource, folder: FitFolder, settings: FitSettings
    ) -> None:
        """Continue from the folder's progress, or begin. Raises UnreadableData, StorageFailed."""
        self._spec, self._source, self._folder = spec, source, folder
        self._settings = settings
        state = folder.read(spec, source.identity)
        self.resumed = state is not None
        """Whether this continues an interrupted fit."""
        self._state = state or FitState(spec.fingerprint, source.identity, rows="")
        self._model = InMemoryModel(spec)
        if self._state.rows:
            self._model = folder.load(self._state.rows, spec)
        self._loss = LogLossSum()
        if settings.holdout:
            source.count()

    @property
    def refusals(self) -> tuple[RefusedEvents, ...]:
        """The rows left out so far, by reason."""
        return self._state.refusals

    def run(
        self, stop: threading.Event, tell: Callable[[FitProgress], object]
    ) -> FitSummary | None:
        """Learn until the end; return None if `stop` was set earlier: the next fit continues.

        `tell` is called before the first example, so that it can tell a rate from then on.
        Raises UnreadableData if more than half of the rows are refused.
        """
        while not self._state.tail:
            if not self._epoch(stop, tell):
                return None
        if self._settings.holdout and not self._learn(True, stop, tell):
            return None
        name = self._folder.finish(self._model, self._source.marks)
        state = self._state
        entropy = self._loss.normalized_entropy
        rows = len(self._model)
        told = state.examples, state.epoch, entropy, state.best_loss
        return FitSummary(name, rows, *told, self._loss.mean, state.clicks, state.order)

    def _epoch(self, stop: threading.Event, tell: Callable[[FitProgress], object]) -> bool:
        """Learn the rest of an epoch, and decide about the next; return False if stopped."""
        self._loss = LogLossSum()
        if not self._learn(False, stop, tell):
            return False
        if self._state.epoch == 0:
            self._check_refusals()
        done = self._state.epoch + 1
        loss = self._held_out_loss() if self._settings.holdout else None
        best = self._state.best_loss
        better = loss is None or best is None or loss < best
        last = done >= self._settings.epochs or not better
        if not better:
            self._model = self._folder.load(self._state.best_rows, self._spec)
        # a state is saved between epochs only if there is another, or a tail to learn
        continues = not last or self._settings.holdout
        rows = self._folder.save(self._model) if continues else self._state.rows
        first = FilePosition()
        self._state = msgspec.structs.replace(
            self._state,
            rows=rows,
            epoch=done if better else self._state.epoch,
            file=first.file,
            block=first.block,
            best_rows=rows if better and loss is not None else self._state.best_rows,
            best_loss=loss if better else best,
            tail=last,
        )
        if continues:
            self._folder.write(self._state)
        return True

    def _learn(
        self, tail: bool, stop: threading.Event, tell: Callable[[FitProgress], object]
    ) -> bool:
        """Learn the blocks of the tail, or those before it; return False if stopped."""
        tell(self._progress(0.0))
        now_s = time.monotonic()
        save_at_s = now_s + self._settings.save_every_s
        tell_at_s = now_s
        blocks_ahead = read_ahead(self._blocks(tail, self._state.position))
        with layer_threads(self._spec, available_cores()), blocks_ahead as blocks:
            for block in blocks:
                self._learn_one(block)
                now_s = time.monotonic()
                if now_s >= tell_at_s:
                    tell_at_s = now_s + self._settings.tell_every_s
                    tell(self._progress(block.read))
                if stop.is_set() or now_s >= save_at_s:
                    self._save()
                    save_at_s = time.monotonic() + self._settings.save_every_s
                if stop.is_set():
                    return False
        tell(self._progress(1.0))
        return True

    def _learn_one(self, block: ExampleBlock) -> None:
        examples, state = block.examples, self._state
        if len(examples):
            scores = self._model.learn(examples)
            add_scores(self._loss, examples, scores)
        # the tail is learned once, the other blocks once per epoch
        once = state.tail or state.epoch == 0
        refusals = block.refusals if once else ()
        times = block.times if once else None
        self._state = msgspec.structs.replace(
            state,
            file=block.after.file,
            block=block.after.block,
            examples=state.examples + len(examples),
            refusals=merged_refusals(state.refusals, refusals),
            clicks=state.clicks + int(np.count_nonzero(examples.labels)),
            order=state.order if times is None else state.order.after(times),
        )

    def _check_refusals(self) -> None:
        """Raise UnreadableData if the data is mostly refused, and forget the progress.

        The same files with another layout would otherwise continue after the refused rows.
        """
        if too_many := mostly_refused(self._state.refusals, self._state.examples):
            self._folder.restart()
            raise too_many

    def _held_out_loss(self) -> float:
        with read_ahead(self._blocks(True, FilePosition())) as blocks:
            return held_out_loss(self._model, (block.examples for block in blocks))

    def _blocks(self, tail: bool, after: FilePosition) -> Iterator[ExampleBlock]:
        """Yield the blocks of the held-out tail, or those before it."""
        border = 1.0 - self._settings.holdout
        for block in split_at(border, self._source.blocks(after)):
            if not self._settings.holdout or (block.read > border) is tail:
                yield block
            elif not tail:
                return

    def _progress(self, read: float) -> FitProgress:
        state = self._state
        epoch = None if state.tail else state.epoch
        return FitProgress(epoch, read, state.examples, self._loss.normalized_entropy)

    def _save(self) -> None:
        rows = self._folder.save(self._model)
        self._state = msgspec.structs.replace(self._state, rows=rows)
        self._folder.write(self._state)
