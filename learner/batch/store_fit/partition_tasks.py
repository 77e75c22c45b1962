"""The work on one partition of a distributed table: staging, learning, scoring.

Each task is a value that can be pickled and called with an iterator of Arrow batches, as Spark's
`mapInArrow` calls a function in its workers. Nothing here imports Spark (`headrace.spark` does), so
these functions are tested without a JVM.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import logit

from headrace.learner.batch.store_fit.staged_file import (
    STAGED,
    StagedFileLearner,
    StagedPlace,
    staged,
)
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.local.table_examples import TableEncoder, learnable_times, times_of
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.validation.progressive import LEAST
from headrace.pserver.store import Store
from headrace.runtime.clock import wall_ms

if TYPE_CHECKING:
    from headrace.learner.validation.log_loss_sum import SharedLoss


Batches = Iterator[pa.RecordBatch]

LEARNED = pa.schema([("number", pa.int64()), ("rows", pa.int64())])
_loaded: dict[str, InMemoryModel] = {}
"""The model that this process scored with last, by token: workers take many partitions."""


@dataclass(frozen=True)
class RunSpec:
    """A spec as text, and the name of its model in the parameter server for one run.

    Every run has a model of its own, so that runs of one spec can overlap.
    """

    text: str
    name: str

    def read(self) -> ModelSpec:
        """Return the spec, under the name of the run."""
        return replace(parse_spec(self.text, "spec"), name=self.name)


@dataclass(frozen=True)
class StageTask:
    """Encodes rows with labels as packed examples, with the columns of STAGED."""

    spec: RunSpec
    label: str
    weight: str = ""

    def __call__(self, batches: Batches) -> Batches:
        """Yield the packed examples of each batch.

        Raises ValueError for a bad label or weight, and for a time more than a day ahead.
        """
        encoder, first, now_ms = TableEncoder(self.spec.read().fields), 0, wall_ms()
        for batch in batches:
            count = batch.num_rows
            columns = _columns_of(batch)
            weights = None
            if self.weight:
                weights = _weights_of(self.weight, columns.pop(self.weight))
            labels = _labels_of(self.label, columns.pop(self.label))
            times = learnable_times(columns, count, now_ms)
            examples = encoder.examples(columns, times, labels, weights, first)
            first += count
            rows, blobs = zip(*staged(examples), strict=True) if count else ((), ())
            arrays = [pa.array(rows, pa.int64()), pa.array(blobs, pa.binary())]
            yield pa.RecordBatch.from_arrays(arrays, schema=STAGED)


@dataclass(frozen=True)
class LearnTask:
    """Learns the staged files whose numbers a batch has, each to its end."""

    spec: RunSpec
    places: Sequence[StagedPlace]
    connect: Callable[[str], Store]
    """Opens the store of a model."""
    loss: SharedLoss | None = None
    """Gets the loss of the scores made before learning, if processes of one machine learn."""

    def __call__(self, batches: Batches) -> Batches:
        """Yield number and rows of each file once all buckets have all of its rows."""
        spec = self.spec.read()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                store = self.connect(spec.name)
                try:
                    loss = None if self.loss is None else self.loss.of_file(number)
                    learner = StagedFileLearner(store, spec, self.places[number], loss=loss)
                    learner.run()
                finally:
                    store.close()
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([learner.rows], pa.int64())],
                    schema=LEARNED,
                )


@dataclass(frozen=True)
class ScoreTask:
    """Adds probability, log-odds and class to rows."""

    model: Any
    """A broadcast, whose `value` is a pickled InMemoryModel."""
    token: str
    """Names the model in this process."""
    names: tuple[str, str, str]
    """Of the columns: probability of a click, log-odds, class."""

    def __call__(self, batches: Batches) -> Batches:
        """Yield the batches with three more columns of float64."""
        if self.token not in _loaded:
            _loaded.clear()
            _loaded[self.token] = pickle.loads(self.model.value)  # noqa: S301 (of this job's driver)
        model, now_ms = _loaded[self.token], wall_ms()
        encoder = TableEncoder(model.spec.fields)
        for batch in batches:
            columns = _columns_of(batch)
            times = times_of(columns, batch.num_rows, now_ms)
            alone = np.arange(1, batch.num_rows + 1)  # rows come in any order, not by request
            clicks = model.predict(encoder.features(columns, times), times, alone)
            log_odds = logit(np.clip(clicks, LEAST, 1.0 - LEAST))
            classes = (log_odds > 0.0).astype(np.float64)
            yield _with_columns(batch, self.names, (clicks, log_odds, classes))


def _with_columns(
    batch: pa.RecordBatch, names: Sequence[str], columns: Sequence[npt.NDArray[np.float64]]
) -> pa.RecordBatch:
    arrays = [*batch.columns, *(pa.array(each, pa.float64()) for each in columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, *names])


def _columns_of(batch: pa.RecordBatch) -> dict[str, Any]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _labels_of(name: str, values: pa.Array) -> npt.NDArray[np.uint8]:
    numbers = values.cast(pa.float64()) if not pa.types.is_boolean(values.type) else values
    numbers = numbers.cast(pa.uint8(), safe=False) if numbers.type == pa.bool_() else numbers
    found = np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)
    bad = (found != 0.0) & (found != 1.0)
    if bad.any():
        got = pc.take(values, pa.array([int(bad.argmax())]))[0]
        raise ValueError(f"column {name!r}: expected labels 0 and 1, got {got}")
    return found.astype(np.uint8)


def _weights_of(name: str, values: pa.Array) -> npt.NDArray[np.float32]:
    found = np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)
    bad = ~(found >= 0.0) | np.isinf(found)
    if bad.any():
        got = found[int(bad.argmax())]
        raise ValueError(f"column {name!r}: expected weights from 0 up, got {got}")
    return found.astype(np.float32)
