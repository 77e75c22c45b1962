"""Runs a learner as a process: the loop with its clients, clocks and metrics."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY

from headrace.ingest.examples.batch import UnreadableExamples
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.log_bounds import LogBounds
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.ingest.kafka.reading.record_fetcher import RecordFetcher
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    EventTopics,
    TopicSpec,
    check_topic_settings,
    examples_topic,
    scores_topic,
)
from headrace.ingest.status import status_in
from headrace.learner.errors import NoGroup, WrongExamples
from headrace.learner.inputs.admission import described
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.exchange import ThreadExchange
from headrace.learner.loop.guard.batch_guard import BatchGuard, MiniBatchGuard, NoGuard
from headrace.learner.loop.guard.stream_change import GuardLimits
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.outputs import KafkaOutputs
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerPorts
from headrace.learner.metrics import LearnerCollector
from headrace.learner.models.factory import open_model
from headrace.learner.models.row_model import RowModel
from headrace.learner.models.sync_group import SyncGroup
from headrace.learner.spec.compatibility import check_compatible
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import Resharded
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape, Store
from headrace.runtime.clock import steady_ms, wall_ms
from headrace.runtime.counted_nouns import counted
from headrace.runtime.process import running_process

if TYPE_CHECKING:
    from headrace.learner.models.deep.process_group import GroupConfig

log = logging.getLogger(__name__)

_FINISH_MS = 5_000
"""For the last push on SIGTERM: less than any orchestrator's grace period."""


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """Settings that may differ between two learners of the same model."""

    instance: str = ""
    """Name that survives restarts: the group then returns the partitions at once."""
    metrics_port: int = 0
    """Port of /metrics; 0 serves none."""
    metrics_host: str = "127.0.0.1"
    pace: LearnerPacing = field(default_factory=LearnerPacing)
    limits: GuardLimits | None = field(default_factory=GuardLimits)
    """Limits beyond which a batch is quarantined; None learns every batch."""
    accept_topic: str = ""
    """Id of a recreated topic of examples that continues where the old one ended. The operator
    says so, once: nothing in the two topics can prove it."""
    accept_gap: bool = False
    """Whether to go on after examples that Kafka deleted before they were learned."""
    skip_damaged: tuple[str, ...] = ()
    """Damaged messages to skip, each as TOPIC/PARTITION@OFFSET."""
    examples_of: str = ""
    """Name of the model whose examples are read; empty for its own. For a copy of a model, which
    continues from the same marks: its fields and label must be the same."""
    most_rows: int | None = None
    """Rows held in memory, the others pulled when a batch needs them; None holds all."""
    place: GroupConfig | None = None
    """Place among the learners that step together, if the spec asks for that."""


def _check_place(settings: LearnerSettings, spec: ModelSpec) -> None:
    if spec.structure.synchronous and settings.place is None:
        raise NoGroup(
            f'model "{spec.name}" has [model] synchronous = true: expected a rank and the '
            "number of learners (--rank, --world-size, which torchrun sets), got neither"
        )


def _join(place: GroupConfig | None, spec: ModelSpec, model: RowModel) -> SyncGroup:
    """Meet the learners to step with, if the spec asks for it. Raises GroupBroken."""
    if not spec.structure.synchronous or place is None:
        return SyncGroup()
    from headrace.learner.models.deep.deep_model import DeepModel
    from headrace.learner.models.deep.process_group import join_group

    assert isinstance(model, DeepModel)  # no other is synchronous
    log.info("rank %d: waiting for %d learners", place.rank, place.size)
    return model.step_together(join_group(place))


def _guard(limits: GuardLimits | None, spec: ModelSpec) -> BatchGuard:
    if limits is None:
        return NoGuard()
    kind = MiniBatchGuard if spec.structure.synchronous else BatchGuard
    return kind(spec.fields.label.window_ms, limits)


def _complete_replica(
    store: Store, shape: Shape, stop: threading.Event, model: RowModel, most_rows: int | None
) -> Replica | CachedReplica:
    """Return a complete replica, or an incomplete one if `stop` is set before."""
    replica: Replica | CachedReplica
    if most_rows is None:
        replica = Replica(store, shape)
    else:
        replica = CachedReplica(store, shape, model.required_rows, most_rows)
    while not replica.complete and not stop.is_set():
        replica.poll()
        if not replica.complete:
            stop.wait(0.05)  # a shard does not answer yet
    held = len(replica.table), shape.buckets
    log.info("%s complete: %d rows in %d buckets", type(replica).__name__, *held)
    return replica


def _waiting(learner: Learner) -> bool:
    """Return whether learning waits for keepers, shards or an operator; no restart helps then."""
    figures = learner.figures
    return figures.throttled or figures.unanswered_examples > 0 or figures.waiting_for_parked


def _check_same(shape: Shape, push_store: Store) -> None:
    """Let the connection for pushes read the shape now: the first push may meet a dead shard."""
    if push_store.shape() != shape:
        raise Resharded(
            f"expected {counted(shape.buckets, 'bucket')} of {shape.model!r}, got "
            f"{push_store.shape().buckets}: the model was resharded. Start this process again"
        )


def _check_topics(kafka: KafkaSettings, examples: str, scores: str) -> None:
    """Check the settings that marks and first scores depend on. Raises TopicMismatch."""
    log_only = {"cleanup.policy": "delete"}
    check_topic_settings(kafka, [TopicSpec(name, 1, log_only) for name in (examples, scores)])


def run_learner(
    settings: LearnerSettings,
    kafka: KafkaSettings,
    connect: Callable[[], Store],
    spec: ModelSpec,
    stop: threading.Event,
) -> None:
    """Learn until `stop` is set; then push what is pending and return.

    `connect` opens the model's store, once for reading and once for pushing. Raises the errors of
    ingest.errors, pserver.errors and learner.errors, all of which need an operator.
    """
    _check_place(settings, spec)
    store, push_store = connect(), connect()
    shape = store.shape()
    _check_same(shape, push_store)
    check_compatible(spec, shape)
    model = open_model(spec, shape.buckets)
    replica = _complete_replica(store, shape, stop, model, settings.most_rows)
    group = _join(settings.place, spec, model)
    exchange = ThreadExchange(push_store)
    topic = examples_topic(settings.examples_of or spec.name)
    _check_topics(kafka, topic, scores_topic(spec.name))
    reader = KafkaReader(
        kafka,
        group=f"headrace.{spec.name}.learner",
        topics=[topic],
        instance=settings.instance or None,
    )
    scores = KafkaWriter(kafka)
    if spec.admission is not None:
        log.info(described(spec.admission))
    fetcher = RecordFetcher(lambda: KafkaReader(kafka, None, [topic]))
    ports = LearnerPorts(
        reader,
        KafkaOutputs(scores, scores_topic(spec.name), EventTopics().dead_letters),
        store,
        exchange,
        fetcher,
        settings.accept_topic,
        settings.accept_gap,
        settings.skip_damaged,
    )
    guard = _guard(settings.limits, spec)
    pace = settings.pace
    learner = Learner(ports, replica, model, spec.fields, pace, guard=guard, group=group)
    lag = ReadLag("headrace_learner_lag", {"model": spec.name})
    lag.follow(LogBounds(kafka), lambda: learner.intake.committed)
    collector = LearnerCollector(spec.name, learner, wall_ms, lambda: model.admissions, lag.known)
    address = settings.metrics_host, settings.metrics_port
    try:
        status, metrics = status_in(kafka), [collector, lag]
        with running_process("learner", status, REGISTRY, address, collectors=metrics) as health:
            health.ready_when(lambda: reader.settled)
            health.watch(lag.progress, lambda: not _waiting(learner) and lag.behind())
            while not stop.is_set():
                learner.step(0.02)
                health.stepped()
            if not learner.finish(steady_ms() + _FINISH_MS):
                log.warning("stopped with unanswered pushes: their examples will be read again")
    except UnreadableExamples as error:
        raise WrongExamples(topic, error) from error
    finally:
        exchange.close()
        reader.close()
        fetcher.close()
        scores.close()
        store.close()
        push_store.close()
