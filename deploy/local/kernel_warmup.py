"""Compiles the numba kernels before the parts start.

The kernels of joiner, learner and server are compiled at their first call and cached on disk for
later processes. On a fresh clone that takes half a minute, which would count as part of the first
run. Before the parts start, one impression and its click therefore go through the same joiner and
learner in this process, with lists for Kafka and memory for the parameter server (`warm`).

Each process has to load its kernels and libraries as well. Joiners, learners and servers do that
before they are ready (`warm_joiner`, `warm_learner`, `warm_server`), so that the first click and
the first request take no longer than others. An image needs the kernels of all of them, because a
container on a read-only root cannot keep what it compiles.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa

from headrace.ingest.events import TIME
from headrace.ingest.examples import Examples, Kind, pack
from headrace.ingest.features import Encoder, Policy
from headrace.ingest.joiner import Joiner, JoinerPacing
from headrace.ingest.kafka import (
    EventTopics,
    ListReader,
    ListTransactions,
    ListWriter,
    Source,
    examples_topic,
    memory_ports,
    scores_topic,
)
from headrace.ingest.runtime import steady_ms
from headrace.learner import NoUncertainty
from headrace.learner.loop import (
    BatchGuard,
    DirectExchange,
    KafkaOutputs,
    Learner,
    LearnerPacing,
    LearnerPorts,
)
from headrace.learner.models import open_model
from headrace.pserver import MemoryStore, Shape
from headrace.pserver.replica import Replica
from headrace.pserver.rows import RowTable

if TYPE_CHECKING:
    from headrace.ingest.kafka import Outgoing
    from headrace.learner.spec import ModelSpec

SHOWN_MS = 1_700_000_000_000


def warm(spec: ModelSpec) -> int:
    """Join and learn one impression and its click; return the number of rows."""
    written = _join(spec)
    examples = ListReader({Source(examples_topic(spec.name), 0): []})
    for message in written:
        if message.target.topic == examples_topic(spec.name):
            examples.append(message.target, message.value, SHOWN_MS)
    return _learn(spec, examples)


def warm_joiner(spec: ModelSpec) -> None:
    """Load in this process everything that a joiner calls for its first events."""
    _join(spec)


def warm_learner(spec: ModelSpec) -> int:
    """Load in this process everything that a learner calls; return the number of rows.

    Its examples are made without a joiner, whose kernels a learner does not need.
    """
    topic = ListReader({Source(examples_topic(spec.name), 0): []})
    topic.append(Source(examples_topic(spec.name), 0), pack(_examples(spec)), SHOWN_MS)
    return _learn(spec, topic)


def warm_server(spec: ModelSpec) -> None:
    """Compile or load what servers, their row caches and scorers call for any request."""
    # a joiner or a learner imports this module, but not the server
    from headrace.serving.models import Predictor, learned_shares
    from headrace.serving.replicas import TableRowSource
    from headrace.serving.requests import EventCandidates

    model, table = open_model(spec, 2), RowTable(spec.width)
    predictor, rows = Predictor(spec.fields, model), TableRowSource(table)
    nothing = EventCandidates({}, [{}])
    predictor.predict(rows, nothing, SHOWN_MS)
    predictor.predict(rows, nothing, SHOWN_MS, np.ones(1, np.int64))
    predictor.predict_events(rows, [{TIME: SHOWN_MS}])
    predictor.explain(rows, nothing, SHOWN_MS)
    learned_shares(spec.fields, rows, SHOWN_MS)
    with suppress(NoUncertainty):
        predictor.uncertainty(rows, nothing, SHOWN_MS)
    features, times = nothing.encode(Encoder(spec.fields), SHOWN_MS), nothing.times(SHOWN_MS)
    model.asked_rows.of_features(features)
    model.asked_rows.of_statistics(table, features, times)


def _examples(spec: ModelSpec) -> Examples:
    """Return what a joiner makes of one impression and its click."""
    fields = spec.fields
    kinds, labels, times = [Kind.SHOWN, Kind.CLICKED], [0, 1], [SHOWN_MS, SHOWN_MS + 1]
    if fields.label.policy == Policy.WINDOW:
        kinds, labels, times = [Kind.CLOSED], [1], [SHOWN_MS]
    count = len(kinds)
    nothing = pa.nulls(count, pa.string())
    return Examples(
        fingerprint=fields.fingerprint,
        watermark_ms=SHOWN_MS + 1,
        kinds=np.array(kinds, np.uint8),
        labels=np.array(labels, np.uint8),
        event_ms=np.array(times, np.int64),
        shown_ms=np.full(count, SHOWN_MS, np.int64),
        append_ms=np.array(times, np.int64),
        impression_ids=pa.array(["warm"] * count, pa.string()),
        request_ids=nothing,
        features=Encoder(fields).encode([{}] * count),
        slices=dict.fromkeys(fields.slice_by, nothing),
        weights=np.ones(count, np.float32) if fields.weights.declared else None,
        negative_rate=fields.weights.negative_rate,
    )


def _join(spec: ModelSpec) -> list[Outgoing]:
    topics = EventTopics()
    shown, clicked = Source(topics.impressions, 0), Source(topics.clicks, 0)
    reader = ListReader({shown: [], clicked: []})
    impression = {"impression_id": "warm", "timestamp_ms": SHOWN_MS}
    window_ms = spec.fields.label.window_ms
    for source, event in (
        (shown, impression),
        (clicked, impression | {"timestamp_ms": SHOWN_MS + 1}),
        # after the window, so that it closes under every label policy
        (shown, {"timestamp_ms": SHOWN_MS + window_ms + 2}),
        (clicked, {"timestamp_ms": SHOWN_MS + window_ms + 2}),
    ):
        reader.append(source, orjson.dumps(event), SHOWN_MS)
    transactions = ListTransactions()
    ports = memory_ports(reader, transactions, steady_ms)
    joiner = Joiner(ports, spec.name, spec.fields, topics, JoinerPacing())
    for _ in range(8):
        joiner.step(0.0)
    joiner.finish()
    return transactions.written


def _learn(spec: ModelSpec, examples: ListReader) -> int:
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
        guard=BatchGuard(),
    )
    learner.view.reserve(learner.view.room + 1)  # compiles the creation of an index too
    for _ in range(8):
        learner.step(0.0)
    learner.finish(steady_ms() + 1000)
    served = Replica(store, store.shape())
    served.poll()
    return len(served.table)
