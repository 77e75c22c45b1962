"""Runs a scorer as a process: the loop with its rows, Kafka clients, clocks and metrics."""

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from headrace.ingest.errors import KafkaUnreachable, MissingTopic
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.log_bounds import LogBounds
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    EventTopics,
    TopicSpec,
    check_topic_settings,
    ensure_topics,
    partition_counts,
)
from headrace.ingest.kafka.transactional_ports import open_ports
from headrace.ingest.status import status_in
from headrace.runtime.clock import wall_ms
from headrace.runtime.health import ProcessHealth
from headrace.runtime.http.metrics_server import new_registry
from headrace.runtime.process import running_process
from headrace.runtime.process_metrics import ModelCollector
from headrace.serving.models.loading import ModelLoader, SnapshotModel, StoreModel, compatible_spec
from headrace.serving.models.registry import ServedModel
from headrace.serving.replicas.caching_follower import CacheBounds
from headrace.serving.replicas.follower import Following
from headrace.serving.replicas.replica_metrics import ReplicaCollector
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.scoring.loop import ScoringTopics, ScoringTotals, StreamScorer

log = logging.getLogger(__name__)

_STEP_S = 0.05
"""Longest wait for impressions within a step, so that a stop takes effect soon."""
_LOOK_S = 0.05
"""Interval of checks whether the rows are complete."""


@dataclass(frozen=True, slots=True)
class ScoringSettings:
    """Settings that may differ between processes that score for the same model."""

    instance: str = ""
    """Stable over restarts: a predecessor's open transaction is aborted, and its partitions are
    assigned at once. Each process needs another name. Empty: a new name at each start."""
    impressions: str = "impressions"
    """The topic to read. Other models and groups may read it as well."""
    scores: str = ""
    """The topic to write; empty: `scored.<model>`. If it is missing, it is created with as many
    partitions as the topic to read."""
    score_again: bool = False
    """Whether to score from the first impression although Kafka has forgotten the committed offsets
    and scores exist. They are then made twice."""
    metrics_port: int = 0
    """0: no metrics."""
    metrics_host: str = "127.0.0.1"
    following: Following = field(default_factory=Following)
    bounds: CacheBounds | None = None
    """Size of the row cache; None: a full replica."""


def scored_topic(model: str) -> str:
    """Return the default topic for the scores of a model."""
    return f"scored.{model}"


def scorer_group(model: str) -> str:
    """Return the consumer group whose committed offsets mark the impressions a model has scored."""
    return f"headrace.{model}.scorer"


def run_scoring(
    settings: ScoringSettings,
    kafka: KafkaSettings,
    model: StoreModel | SnapshotModel,
    stop: threading.Event,
) -> None:
    """Score until `stop` is set; then commit the impressions that were read, and end.

    Waits for the complete replica before the first impression. Raises the errors of
    `ingest.errors`, Fenced if another process of the same instance took over, the error of the
    first copy of the rows, and WrongModel.
    """
    name = model.spec.name
    topics = _topics(settings, kafka, name)
    registry = new_registry()
    loader = ModelLoader(settings.following, settings.bounds, RequestLimits(), registry)
    [served] = [loader.load(*each) for each in compatible_spec([model])]
    registry.register(ReplicaCollector([served], wall_ms))
    totals = ScoringTotals()
    address = settings.metrics_host, settings.metrics_port
    lag = ReadLag("headrace_scorer_lag", {"model": name})
    collectors = [ScoringCollector(name, totals), lag]
    with running_process(
        "scorer", status_in(kafka), registry, address, collectors=collectors
    ) as health:
        served.rows.start()
        try:
            if _here(served, stop):
                _score(settings, kafka, served, topics, stop, totals, (health, lag))
        finally:
            served.rows.stop()


def _topics(settings: ScoringSettings, kafka: KafkaSettings, model: str) -> ScoringTopics:
    """Return the topics, and create missing ones."""
    topics = ScoringTopics(
        settings.impressions, settings.scores or scored_topic(model), EventTopics().dead_letters
    )
    counts = partition_counts(kafka, [topics.impressions, topics.scores, topics.dead_letters])
    if topics.impressions not in counts:
        raise MissingTopic(f"expected a topic {topics.impressions} to score, got none: create it")
    missing = {topics.scores: counts[topics.impressions], topics.dead_letters: 1}
    log_only = {"cleanup.policy": "delete"}
    ensure_topics(
        kafka,
        [TopicSpec(each, n, log_only) for each, n in missing.items() if each not in counts],
    )
    check_topic_settings(kafka, [TopicSpec(each, 1, log_only) for each in counts])
    return topics


def _has_records(kafka: KafkaSettings, topic: str) -> bool:
    with closing(read_all(kafka, topic)) as records:
        return next(records, None) is not None


def _here(served: ServedModel, stop: threading.Event) -> bool:
    """Wait for the complete rows; return False if `stop` is set first."""
    while not served.rows.status.complete:
        if served.rows.failure is not None:
            raise served.rows.failure
        if stop.wait(_LOOK_S):
            return False
    return True


def _score(
    settings: ScoringSettings,
    kafka: KafkaSettings,
    served: ServedModel,
    topics: ScoringTopics,
    stop: threading.Event,
    totals: ScoringTotals,
    watching: tuple[ProcessHealth, ReadLag],
) -> None:
    health, lag = watching
    group, inputs = scorer_group(served.spec.name), [topics.impressions]
    with open_ports(kafka, group, inputs, settings.instance, stop, wall_ms) as ports:
        loop = StreamScorer(
            ports,
            served,
            topics,
            lambda: not settings.score_again and _has_records(kafka, topics.scores),
            totals,
        )
        log.info("scoring %s into %s", topics.impressions, topics.scores)
        health.ready_when(lambda: ports.reader.settled)
        lag.follow(LogBounds(kafka), lambda: dict(loop.positions))
        health.watch(lag.progress, lag.behind)
        try:
            while not stop.is_set():
                loop.step(_STEP_S)
                health.stepped()
        except KafkaUnreachable:
            if not stop.is_set():
                raise
            log.warning("stopped while Kafka was unreachable: its events will be read again")


class ScoringCollector(ModelCollector):
    """The totals of one process."""

    def __init__(self, model: str, totals: ScoringTotals) -> None:
        super().__init__("scorer", model)
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        totals = self._totals
        for name, text, value in (
            ("impressions", "Impressions whose scores were committed.", totals.scored),
            ("transactions", "Transactions committed.", totals.transactions),
            ("aborts", "Transactions that were not committed.", totals.aborts),
            ("gone", "Impressions that retention removed unscored.", totals.gone),
            (
                "defaulted_rows",
                "Rows that missed the fetch deadline and were scored with their initial values.",
                totals.defaulted_rows,
            ),
        ):
            yield self._counter(name, text, value)
        letters = CounterMetricFamily(
            "headrace_scorer_dead_letters",
            "Messages that could not be scored.",
            labels=["model", "reason"],
        )
        for reason, count in totals.dead_letters.items():
            letters.add_metric([self._model, reason], count)
        yield letters
        if totals.newest_ms:
            yield self._gauge(
                "event_timestamp_seconds",
                "Largest event time scored, Unix time.",
                totals.newest_ms / 1000,
            )
