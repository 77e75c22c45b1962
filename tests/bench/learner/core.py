"""Measures the model alone: rows in memory, no Kafka, no parameter server, one core.

The pending deltas of rows are kept, as for a push. The first pass over the stream adds rows, and
its scores give the accuracy. The reported rate is the median of the later passes, over existing
rows; the first pass is reported as `..._new_rows`.
"""

import statistics
import time

import numpy as np

from headrace.ingest.examples.batch import Examples
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.store import Shape
from tests.bench.learner.alone import Learned
from tests.bench.learner.stream import Stream, batches_of

_BUCKETS = 64


class Core:
    """A model and its rows, as a learner holds them."""

    def __init__(self, spec: ModelSpec) -> None:
        self.model, self.view = open_model(spec, _BUCKETS), view_of(spec.width)
        self.pending = PendingDeltas(self.view, Shape(spec.name, _BUCKETS, spec.width, "", ""))
        self.active = np.ones(_BUCKETS, np.bool_)

    def learn(self, batches: list[Examples]) -> Learned:
        """Learn a stream."""
        scores = []
        began = time.perf_counter()
        for batch in batches:
            self.view.reserve(self.model.rows_needed(batch))
            made = self.model.learn(self.view, self.pending.reserve(), self.active, batch)
            scores.append(made)
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
