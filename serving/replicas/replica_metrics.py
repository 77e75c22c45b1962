"""Prometheus metrics of replicas: freshness, state, and the row cache.

Freshness and cache reads are counted as they happen. The state of a replica is read during a
scrape. The buckets of the histogram are dense around the target: a click is learned within a
second.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.learner.spec.model_spec import ModelSpec
from headrace.serving.replicas.status import STATES, LocalRows, ReplicaStatus

ROW_OUTCOMES = ("hit", "fetched", "defaulted")
_FRESHNESS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class FreshnessMetrics:
    """The histogram of freshness."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "headrace_server_freshness_seconds",
            "Delay from a click's append to Kafka to its arrival in this replica.",
            ("model",),
            buckets=_FRESHNESS_S,
            registry=registry,
        )

    def of(self, model: str) -> Callable[[Iterable[int]], None]:
        """Return a function that observes a model's samples, in milliseconds."""
        child = self._seconds.labels(model)

        def observe(samples_ms: Iterable[int]) -> None:
            for sample in samples_ms:
                child.observe(sample / 1000)

        return observe

    def forget(self, model: str) -> None:
        """Drop the metrics of a model that is no longer served."""
        self._seconds.remove(model)


class CacheMetrics:
    """Hits and misses of row caches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read = Counter(
            "headrace_server_rows_read",
            "Rows that requests read from a row cache: a hit, fetched within the deadline, or "
            "defaulted to their initial values.",
            ("model", "outcome"),
            registry=registry,
        )

    def of(self, model: str) -> Callable[[str, int], None]:
        """Return a function that counts a model's rows by outcome."""
        children = {each: self._read.labels(model, each) for each in ROW_OUTCOMES}

        def count(outcome: str, rows: int) -> None:
            if rows:
                children[outcome].inc(rows)

        return count

    def forget(self, model: str) -> None:
        """Drop the metrics of a model that is no longer served."""
        for outcome in ROW_OUTCOMES:
            self._read.remove(model, outcome)


class LocalReplicas(Protocol):
    """A model with rows in this process."""

    @property
    def spec(self) -> ModelSpec:
        """The model's spec."""

    @property
    def rows(self) -> LocalRows:
        """The model's rows."""


class ReplicaCollector(Collector):
    """Metrics of every model's replica, read during a scrape.

    `models` is iterated at each scrape, so models may come and go.
    """

    def __init__(self, models: Iterable[LocalReplicas], now_ms: Callable[[], int]) -> None:
        self._models, self._now_ms = models, now_ms

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        now = self._now_ms()
        statuses = [(each.spec.name, each.rows.status) for each in self._models]
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"headrace_server_{name}", text, labels=["model"])
            for model, status in statuses:
                if not (status.snapshot and name in _OF_LOGS):
                    gauge.add_metric([model], value(status))
            yield gauge
        state = GaugeMetricFamily(
            "headrace_server_state",
            "1 for the current state of the replica, 0 for the others.",
            labels=["model", "state"],
        )
        age = GaugeMetricFamily(
            "headrace_server_age_seconds",
            "Now minus the append time of the newest event learned, for the freshest (newest) and "
            "the stalest (oldest) bucket. Grows while no events arrive.",
            labels=["model", "bucket"],
        )
        for model, status in statuses:
            for each in STATES:
                state.add_metric([model, each], float(status.state(now) == each))
            for which, append_ms in zip(("newest", "oldest"), status.ages, strict=True):
                if append_ms is not None:
                    age.add_metric([model, which], max(0, now - append_ms) / 1000)
        yield from (state, age)


_GAUGES: tuple[tuple[str, str, Callable[[ReplicaStatus], float]], ...] = (
    ("complete", "1 once the replica can answer predictions.", lambda s: float(s.complete)),
    ("rows", "Rows in this server's replica.", lambda s: s.rows),
    ("version", "Sum of the versions of all buckets.", lambda s: s.version),
    ("buckets", "Buckets of the model.", lambda s: s.buckets),
    (
        "unreachable_buckets",
        "Buckets that failed to respond to the last poll.",
        lambda s: s.unreachable,
    ),
)
_OF_LOGS = ("buckets", "unreachable_buckets")
"""Gauges of models that follow the parameter server. A snapshot has none of these, so that alerts
on keepers do not fire for it."""
