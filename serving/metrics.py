"""What a server tells Prometheus.

Counters and histograms are counted as requests go by; the state of the replica is read when
Prometheus asks. Buckets of the histograms lie around the budgets: a request of 200 candidates in
10 ms, a click learned within a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import CollectorRegistry, Metric

    from serving.follower import Standing

_REQUEST_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0)
_FRESHNESS_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)


class RequestMetrics:
    """Requests and candidates of one server."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "headrace_server_requests",
            "Prediction requests by model and HTTP status.",
            ("model", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "headrace_server_request_seconds",
            "Time to answer a prediction request, once its body was read.",
            ("model",),
            buckets=_REQUEST_S,
            registry=registry,
        )
        self._candidates = Counter(
            "headrace_server_candidates", "Candidates scored.", ("model",), registry=registry
        )
        self._answered: dict[str, tuple[Counter, Histogram, Counter]] = {}

    def answered(self, model: str, seconds: float, candidates: int) -> None:
        """Count a request that got its predictions."""
        children = self._answered.get(model)
        if children is None:  # looking a child up costs more than counting
            children = self._answered[model] = (
                self._requests.labels(model, "200"),
                self._seconds.labels(model),
                self._candidates.labels(model),
            )
        children[0].inc()
        children[1].observe(seconds)
        children[2].inc(candidates)

    def refused(self, model: str, status: int) -> None:
        """Count a request that got none; `model` is empty if it named an unknown one."""
        self._requests.labels(model, str(status)).inc()


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


class ReplicaCollector(Collector):
    """The state of one model's replica."""

    def __init__(
        self, model: str, standing: Callable[[], Standing], now_ms: Callable[[], int]
    ) -> None:
        self._model, self._standing, self._now_ms = model, standing, now_ms

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they stand now."""
        standing, now = self._standing(), self._now_ms()
        yield self._gauge("complete", "1 once predictions are answered.", float(standing.complete))
        yield self._gauge("rows", "Rows in this server's replica.", standing.rows)
        yield self._gauge("version", "Sum of the versions of all buckets.", standing.version)
        yield self._gauge("buckets", "Buckets of the model.", standing.buckets)
        yield self._gauge(
            "unreachable_buckets", "Buckets that could not be followed when last asked.",
            standing.unreachable,
        )  # fmt: skip
        yield self._gauge(
            "last_poll_timestamp_seconds", "When the logs were last read, Unix time.",
            standing.polled_ms / 1000,
        )  # fmt: skip
        copies = CounterMetricFamily(
            "headrace_server_bucket_copies", "Buckets copied, the first time included.",
            labels=["model"],
        )  # fmt: skip
        copies.add_metric([self._model], standing.copies)
        yield copies
        age = GaugeMetricFamily(
            "headrace_server_age_seconds",
            "Now less the append time of the newest event learned, of the freshest (newest) and "
            "the stalest (oldest) bucket. Grows while no event comes.",
            labels=["model", "bucket"],
        )
        for name, append_ms in zip(("newest", "oldest"), standing.ages, strict=True):
            if append_ms is not None:
                age.add_metric([self._model, name], max(0, now - append_ms) / 1000)
        yield age

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"headrace_server_{name}", text, labels=["model"])
        family.add_metric([self._model], value)
        return family
