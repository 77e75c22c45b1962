"""What a server tells Prometheus.

Counters and histograms are counted as requests go by; the state of the replica is read when
Prometheus asks. Buckets of the histograms lie around the budgets: a request of 200 candidates in
10 ms, a click learned within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
)
from prometheus_client.registry import Collector

from headrace.serving.replicas.status import STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client import CollectorRegistry, Metric

    from headrace.learner.spec import ModelSpec
    from headrace.serving.replicas.caching_follower import CachingFollower
    from headrace.serving.replicas.status import LocalRows, ReplicaStatus

ROW_OUTCOMES = ("hit", "fetched", "defaulted")
_FRESHNESS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class FreshnessMetrics:
    """The histogram of freshness; given the samples as they arrive."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "headrace_server_freshness_seconds",
            "From a click's append to Kafka to the moment that this replica has learned from it.",
            ("model",),
            buckets=_FRESHNESS_S,
            registry=registry,
        )

    def of(self, model: str) -> Callable[[Iterable[int]], None]:
        """Return what takes a model's samples, in milliseconds."""
        child = self._seconds.labels(model)

        def observe(samples_ms: Iterable[int]) -> None:
            for sample in samples_ms:
                child.observe(sample / 1000)

        return observe


class CacheMetrics:
    """What bounded replicas had, and what they had to fetch."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read = Counter(
            "headrace_server_rows_read",
            "Rows that requests read of a bounded replica: a hit, fetched within the deadline, or "
            "defaulted, as if they had not learned anything.",
            ("model", "outcome"),
            registry=registry,
        )
        self._tail = Gauge(
            "headrace_server_tail_bytes",
            "Memory of what a bounded replica keeps of the logs.",
            ("model",),
            registry=registry,
        )

    def of(self, model: str) -> Callable[[str, int], None]:
        """Return what counts a model's rows, by outcome."""
        children = {each: self._read.labels(model, each) for each in ROW_OUTCOMES}

        def count(outcome: str, rows: int) -> None:
            if rows:
                children[outcome].inc(rows)

        return count

    def watch(self, model: str, rows: CachingFollower) -> None:
        """Tell from now on how large a model's tails are."""
        self._tail.labels(model).set_function(lambda: rows.tail_bytes)


class LocalReplicas(Protocol):
    """A model whose rows are here."""

    @property
    def spec(self) -> ModelSpec:
        """What the model is."""

    @property
    def rows(self) -> LocalRows:
        """Its rows."""


class ReplicaCollector(Collector):
    """The state of every model's replica."""

    def __init__(self, models: Sequence[LocalReplicas], now_ms: Callable[[], int]) -> None:
        self._models, self._now_ms = models, now_ms

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they stand now."""
        now = self._now_ms()
        standings = [(each.spec.name, each.rows.standing) for each in self._models]
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"headrace_server_{name}", text, labels=["model"])
            for model, standing in standings:
                if not (standing.snapshot and name in _OF_LOGS):
                    gauge.add_metric([model], value(standing))
            yield gauge
        state = GaugeMetricFamily(
            "headrace_server_state",
            "1 for how the replica stands, 0 for the others.",
            labels=["model", "state"],
        )
        copies = CounterMetricFamily(
            "headrace_server_bucket_copies",
            "Buckets copied, the first time included.",
            labels=["model"],
        )
        age = GaugeMetricFamily(
            "headrace_server_age_seconds",
            "Now less the append time of the newest event learned, of the freshest (newest) and "
            "the stalest (oldest) bucket. Grows while no event comes.",
            labels=["model", "bucket"],
        )
        event = GaugeMetricFamily(
            "headrace_server_event_timestamp_seconds",
            "Event time of the newest event learned, of the freshest (newest) and the stalest "
            "(oldest) bucket, Unix time.",
            labels=["model", "bucket"],
        )
        for model, standing in standings:
            for each in STATES:
                state.add_metric([model, each], float(standing.state(now) == each))
            copies.add_metric([model], standing.copies)
            events = (standing.newest_event_ms, standing.oldest_event_ms)
            for which, append_ms, event_ms in zip(
                ("newest", "oldest"), standing.ages, events, strict=True
            ):
                if append_ms is not None:
                    age.add_metric([model, which], max(0, now - append_ms) / 1000)
                if event_ms is not None:
                    event.add_metric([model, which], event_ms / 1000)
        yield from (state, copies, age, event)


_GAUGES: tuple[tuple[str, str, Callable[[ReplicaStatus], float]], ...] = (
    ("complete", "1 once predictions are answered.", lambda s: float(s.complete)),
    ("rows", "Rows in this server's replica.", lambda s: s.rows),
    ("version", "Sum of the versions of all buckets.", lambda s: s.version),
    ("buckets", "Buckets of the model.", lambda s: s.buckets),
    (
        "unreachable_buckets",
        "Buckets that could not be followed when last asked.",
        lambda s: s.unreachable,
    ),
    (
        "last_poll_timestamp_seconds",
        "When the logs were last read, Unix time.",
        lambda s: s.polled_ms / 1000,
    ),
)
_OF_LOGS = ("buckets", "unreachable_buckets", "last_poll_timestamp_seconds")
"""Of models that follow the parameter server: no alert is to miss a snapshot's keepers."""
