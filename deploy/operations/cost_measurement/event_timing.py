"""Processor time of an event in the joiner, an example in a learner, a candidate in a server.

The steps are those of the processes, with lists for Kafka and memory for the parameter server. All
times are of the processor, and the median over several rounds.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import orjson

from headrace.ingest.examples import unpack
from headrace.ingest.joiner import Joiner, JoinerPacing
from headrace.ingest.kafka import (
    EventTopics,
    ListReader,
    ListTransactions,
    Record,
    Source,
    examples_topic,
    memory_ports,
)
from headrace.ingest.runtime import steady_ms
from headrace.learner.kernels import PendingDeltas, view_of
from headrace.learner.models import open_model
from headrace.pserver import Shape
from headrace.serving.models import Predictor
from headrace.serving.replicas import TableRowSource
from headrace.serving.requests import RequestDecoder, RequestLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.deploy.operations.cost_measurement.trial_model import TrialEvents
    from headrace.learner.spec import ModelSpec

EVENTS_A_ROUND = 5_000
_BUCKETS = 64
_CANDIDATES = 100
_LEAST_ROUNDS = 3


def median_us(step: Callable[[], tuple[float, int]], seconds: float) -> float:
    """Return microseconds of a unit; `step` returns its processor seconds and its units.

    The first two calls compile and warm up.
    """
    step()
    step()
    found = list[float]()
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s or len(found) < _LEAST_ROUNDS:
        spent_s, units = step()
        found.append(spent_s / units)
    return 1e6 * statistics.median(found)


class JoinerTrial:
    """A joiner in memory, which joins round after round."""

    def __init__(self, spec: ModelSpec, events: TrialEvents) -> None:
        topics = EventTopics()
        self._shown, self._clicked = Source(topics.impressions, 0), Source(topics.clicks, 0)
        self._topic, self._events = examples_topic(spec.name), events
        self._reader = ListReader({self._shown: [], self._clicked: []}, largest_poll=50_000)
        self._transactions = ListTransactions()
        self._offsets = {self._shown: 0, self._clicked: 0}
        ports = memory_ports(self._reader, self._transactions, steady_ms)
        self._joiner = Joiner(ports, spec.name, spec.fields, topics, JoinerPacing())
        self._joiner.step(0.0)
        self.blobs: list[bytes] = []
        """Examples of the last round."""

    def step(self) -> tuple[float, int]:
        """Join one round; return processor seconds and events."""
        shown, clicked = self._events.events(EVENTS_A_ROUND)
        for source, values in ((self._shown, shown), (self._clicked, clicked)):
            first = self._offsets[source]
            now_ms = orjson.loads(shown[-1])["timestamp_ms"]
            self._offsets[source] = first + len(values)
            self._reader.records[source] = [
                Record(source, first + k, now_ms, value) for k, value in enumerate(values)
            ]
        self._transactions.written.clear()
        began_s = time.process_time()
        while self._joiner.step(0.0):
            pass
        self._joiner.finish()
        spent_s = time.process_time() - began_s
        written = self._transactions.written
        self.blobs = [each.value for each in written if each.target.topic == self._topic]
        return spent_s, len(shown) + len(clicked)


class LearnerTrial:
    """The model of a learner and its rows, without pushes."""

    def __init__(self, spec: ModelSpec, blobs: list[bytes]) -> None:
        """`blobs`: messages of examples, learned again and again."""
        self._spec, self._model = spec, open_model(spec, _BUCKETS)
        self.view = view_of(spec.width)
        self._pending = PendingDeltas(self.view, Shape(spec.name, _BUCKETS, spec.width, "", ""))
        self._active = np.ones(_BUCKETS, np.bool_)
        self._blobs = blobs
        self.step()  # adds the rows

    def step(self) -> tuple[float, int]:
        """Learn all messages; return processor seconds and examples."""
        count, began_s = 0, time.process_time()
        for blob in self._blobs:
            examples = unpack(blob, self._spec.fields)
            self.view.reserve(self._model.rows_needed(examples))
            self._model.learn(self.view, self._pending.reserve(), self._active, examples)
            count += len(examples)
        spent_s = time.process_time() - began_s
        self._pending.take(range(_BUCKETS))
        return spent_s, count


class ServerTrial:
    """Requests of candidates against rows, from the body to the scores."""

    def __init__(self, spec: ModelSpec, events: TrialEvents, trained: LearnerTrial) -> None:
        self._decoder = RequestDecoder(spec.fields, RequestLimits())
        self._predictor = Predictor(spec.fields, open_model(spec, _BUCKETS))
        self._rows = TableRowSource(trained.view)
        self._bodies = [events.request(_CANDIDATES) for _ in range(20)]

    def step(self) -> tuple[float, int]:
        """Answer some requests; return processor seconds and candidates."""
        now_ms, began_s = steady_ms(), time.process_time()
        for body in self._bodies:
            asked = self._decoder.decode(body)
            scores = self._predictor.predict(self._rows, asked.candidates, now_ms)
            orjson.dumps([{"score": score} for score in scores.tolist()])
        return time.process_time() - began_s, _CANDIDATES * len(self._bodies)
