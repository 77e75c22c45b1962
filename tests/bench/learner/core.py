"""Measures the model alone: rows in memory, no Kafka, no parameter server, one core.

The pending deltas of rows are kept, as for a push. The first pass over the stream adds rows, and
its scores give the accuracy. The reported rate is the median of the later passes, over existing
rows; the first pass is reported as `..._new_rows`.
"""

import statistics
import time

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.store import Shape
from tests.bench.learner.alone import Learned
from tests.bench.learner.stream import Stream, batches_of


class Core:
    """A model and its rows, as a learner holds them."""

    def __init__(self, spec: ModelSpec, buckets: int = 64) -> None:
        self.spec, self.buckets = spec, buckets
        self.model, self.view = open_model(spec, buckets), view_of(spec.width)
        self.pending = PendingDeltas(self.view, Shape(spec.name, buckets, spec.width, "", ""))
        self._active = np.ones(buckets, np.bool_)

    def learn_batch(self, examples: Examples) -> npt.NDArray[np.float64]:
        """Score examples, then learn them; return the scores, NaN for clicks."""
        self.view.reserve(self.model.rows_needed(examples))
        return self.model.learn(self.view, self.pending.reserve(), self._active, examples)

    def predict(self, examples: Examples) -> npt.NDArray[np.float64]:
        """Return the scores that the model would give now."""
        return self.model.predict(self.view, examples.features, examples.event_ms)

    def push(self) -> None:
        """Forget what is pending: it is part of the rows."""
        self.pending.take(range(self.buckets))

    def learn(self, batches: list[Examples]) -> Learned:
        """Learn a stream."""
        began = time.perf_counter()
        scores = [self.learn_batch(batch) for batch in batches]
        seconds = time.perf_counter() - began
        return Learned(sum(map(len, batches)), seconds, np.concatenate(scores))


def learn_core(stream: Stream, text: str, passes: int = 2) -> tuple[Learned, float, int]:
    """Return the first pass, examples a second of those after it, and how many rows there were.

    text: of the model spec.
    """
    spec = parse_spec(text, "bench.toml")
    batches = batches_of(spec, stream)
    Core(spec).learn(batches[:1])  # compiled now, not while the clock runs
    core = Core(spec)
    first, *others = (core.learn(batches) for _ in range(passes))
    return first, statistics.median(each.rate for each in others), len(core.view)
