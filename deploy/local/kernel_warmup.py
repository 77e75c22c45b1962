"""Compiles the numba kernels before the parts start.

The kernels of joiner, learner and server are compiled at their first call and cached on disk for
later processes. On a fresh clone that takes half a minute, which would count as part of the first
run. Before the parts start, a few hundred requests therefore go through the same joiner and learner
in this process, with lists for Kafka and memory for the parameter server (`warm`). A single
impression is not enough: indexes that grow, several partitions and the candidates of a request have
kernels of their own.

Each process has to load its kernels and libraries as well. Joiners, learners and servers do that
before they are ready (`warm_joiner`, `warm_learner`, `warm_server`), so that the first click and
the first request take no longer than others. An image needs the kernels of all of them, because a
container on a read-only root cannot keep what it compiles.
"""

import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from headrace.ingest.events.contract import TIME
from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import Policy
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.fakes import ListReader, ListTransactions, ListWriter, memory_ports
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import EventTopics, examples_topic, scores_topic
from headrace.ingest.kafka.transactions import Outgoing
from headrace.learner.errors import NoUncertainty
from headrace.learner.loop.exchange import DirectExchange
from headrace.learner.loop.guard.batch_guard import BatchGuard
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.outputs import KafkaOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerPorts
from headrace.learner.models.factory import open_model
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from headrace.runtime.clock import steady_ms
from headrace.serving.requests.sample_requests import sample_fields

SHOWN_MS = 1_700_000_000_000
_CANDIDATES = 3
_CLICK_EVERY = 7
"""Coprime to candidates and partitions, so that clicks are everywhere."""


class WarmupStream(NamedTuple):
    """The requests that are joined and learned."""

    partitions: int = 2
    requests: int = 300
    """Enough that every index and memory of joiner and learner grows once."""
    values: int = _CANDIDATES
    """Different values of each field."""
    gap_ms: int = 1
    """Between two requests."""
    steps: int = 8
    """Of a joiner and of a learner: enough to read all events."""

    @property
    def end_ms(self) -> int:
        """The time after the last request."""
        return SHOWN_MS + self.gap_ms * self.requests

    def impressions(self, spec: ModelSpec) -> "Iterator[_Impression]":
        """Yield the impressions of all requests."""
        for request in range(self.requests):
            for candidate in range(_CANDIDATES):
                number = request * _CANDIDATES + candidate
                yield _Impression(
                    *(request % self.partitions, f"r{request}", f"i{number}"),
                    *(SHOWN_MS + self.gap_ms * request, number % _CLICK_EVERY == 0),
                    sample_fields(spec.fields, number % self.values),
                )


_USUAL = WarmupStream()


class _Impression(NamedTuple):
    partition: int
    request: str
    name: str
    shown_ms: int
    clicked: bool
    fields: dict[str, Any]


def warm(spec: ModelSpec, stream: WarmupStream = _USUAL) -> int:
    """Join and learn some requests and their clicks; return the number of rows."""
    written = _join(spec, stream)
    examples = _examples_reader(spec, stream)
    for message in written:
        if message.target.topic == examples_topic(spec.name):
            examples.append(message.target, message.value, SHOWN_MS)
    return _learn(spec, examples, stream)


def warm_joiner(spec: ModelSpec) -> None:
    """Load in this process everything that a joiner calls for its first events."""
    _join(spec, _USUAL)


def warm_learner(spec: ModelSpec) -> int:
    """Load in this process everything that a learner calls; return the number of rows.

    Its examples are made without a joiner, whose kernels a learner does not need.
    """
    topic = _examples_reader(spec, _USUAL)
    for partition in range(_USUAL.partitions):
        source = Source(examples_topic(spec.name), partition)
        topic.append(source, pack(_examples(spec, _USUAL, partition)), SHOWN_MS)
    return _learn(spec, topic, _USUAL)


def warm_server(spec: ModelSpec) -> None:
    """Compile or load what servers, their row caches and scorers call for any request."""
    # a joiner or a learner imports this module, but not the server
    from headrace.serving.models.absent_rows import learned_shares
    from headrace.serving.models.predictor import Predictor
    from headrace.serving.replicas.status import TableRowSource
    from headrace.serving.requests.candidates import Candidates

    model, table = open_model(spec, 2), RowTable(spec.width)
    predictor, rows = Predictor(spec.fields, model), TableRowSource(table)
    nothing = Candidates({}, [{}])
    predictor.predict(rows, nothing, SHOWN_MS)
    predictor.predict(rows, nothing, SHOWN_MS, np.ones(1, np.int64))
    predictor.predict_events(rows, [{TIME: SHOWN_MS}])
    predictor.explain(rows, nothing, SHOWN_MS)
    learned_shares(spec.fields, rows, SHOWN_MS)
    with suppress(NoUncertainty):
        predictor.uncertainty(rows, nothing, SHOWN_MS)
    features, times = nothing.encode(Encoder(spec.fields), SHOWN_MS), nothing.times(SHOWN_MS)
    model.required_rows.of_features(features)
    model.required_rows.of_statistics(table, features, times)


def _examples_reader(spec: ModelSpec, stream: WarmupStream) -> ListReader:
    topic = examples_topic(spec.name)
    return ListReader({Source(topic, partition): [] for partition in range(stream.partitions)})


def _examples(spec: ModelSpec, stream: WarmupStream, partition: int) -> Examples:
    """Return what a joiner makes of the impressions and clicks of a partition."""
    fields = spec.fields
    mine = [each for each in stream.impressions(spec) if each.partition == partition]
    clicked = [each for each in mine if each.clicked]
    kinds, labels = [Kind.SHOWN] * len(mine) + [Kind.CLICKED] * len(clicked), [0] * len(mine)
    if fields.label.policy == Policy.WINDOW:
        kinds, clicked = [Kind.CLOSED] * len(mine), []
        labels = [each.clicked for each in mine]
    mine += clicked
    count, nothing = len(mine), pa.nulls(len(mine), pa.string())
    shown_ms = np.array([each.shown_ms for each in mine], np.int64)
    times = shown_ms + (np.array(kinds) == Kind.CLICKED) * stream.requests
    return Examples(
        fingerprint=fields.fingerprint,
        watermark_ms=2 * stream.end_ms - SHOWN_MS + fields.label.window_ms,  # nothing else comes
        kinds=np.array(kinds, np.uint8),
        labels=np.array([*labels, *[1] * len(clicked)], np.uint8),
        event_ms=times,
        shown_ms=shown_ms,
        append_ms=times,
        impression_ids=pa.array([each.name for each in mine]),
        request_ids=pa.array([each.request for each in mine]),
        features=Encoder(fields).encode([each.fields for each in mine]),
        slices=dict.fromkeys(fields.slice_by, nothing),
        weights=np.ones(count, np.float32) if fields.weights.declared else None,
        negative_rate=fields.weights.negative_rate,
    )


def _join(spec: ModelSpec, stream: WarmupStream) -> list[Outgoing]:
    topics = EventTopics()
    partitions, both = range(stream.partitions), (topics.impressions, topics.clicks)
    reader = ListReader({Source(topic, each): [] for topic in both for each in partitions})

    def send(topic: str, partition: int, time_ms: int, event: dict[str, Any]) -> None:
        value = orjson.dumps(event | {"timestamp_ms": time_ms})
        reader.append(Source(topic, partition), value, time_ms)

    for each in stream.impressions(spec):
        named = {"impression_id": each.name, "request_id": each.request}
        send(topics.impressions, each.partition, each.shown_ms, each.fields | named)
        if each.clicked:
            send(topics.clicks, each.partition, each.shown_ms + 1, named)
    for partition in partitions:
        # after the window, so that it closes under every label policy
        for topic in both:
            closed_ms = stream.end_ms + spec.fields.label.window_ms + 2
            send(topic, partition, closed_ms, {})
    transactions = ListTransactions()
    ports = memory_ports(reader, transactions, steady_ms)
    joiner = Joiner(ports, spec.name, spec.fields, topics, JoinerPacing())
    for _ in range(stream.steps):
        joiner.step(0.0)
    joiner.finish()
    return transactions.written


def _learn(spec: ModelSpec, examples: ListReader, stream: WarmupStream) -> int:
    store = MemoryStore(clock_ms=steady_ms, nonces=lambda: secrets.token_bytes(8))
    store.create(Shape(spec.name, 2, spec.width, spec.fingerprint, spec.text))
    replica = Replica(store, store.shape())
    replica.poll()
    outputs = KafkaOutputs(ListWriter(), scores_topic(spec.name))
    ports = LearnerPorts(examples, outputs, store, DirectExchange(store))
    learner = Learner(
        ports,
        replica,
        open_model(spec, replica.shape.buckets),
        spec.fields,
        LearnerPacing(push_interval_ms=0),
        guard=BatchGuard(spec.fields.label.window_ms),
    )
    learner.view.reserve(learner.view.capacity + 1)  # compiles the creation of an index too
    served = Replica(store, store.shape())
    for _ in range(stream.steps):
        learner.step(0.0)
        served.poll()
    learner.finish(steady_ms() + 1000)
    served.poll()
    return len(served.table)
