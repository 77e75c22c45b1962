"""Compiles the numba kernels before the parts start.

The kernels of joiner, learner and server are compiled at their first call and cached on disk for
later processes. On a fresh clone that takes half a minute, which would count as part of the first
run. Before the parts start, one impression and its click therefore go through the same joiner and
learner in this process, with lists for Kafka and memory for the parameter server.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import orjson

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
from headrace.learner.loop import (
    BatchGuard,
    DirectExchange,
    Learner,
    LearnerPacing,
    LearnerPorts,
)
from headrace.learner.models import open_model
from headrace.pserver import MemoryStore, Shape
from headrace.pserver.replica import Replica

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
    ports = LearnerPorts(
        examples, ListWriter(), scores_topic(spec.name), store, DirectExchange(store)
    )
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
