"""Prometheus metrics of the collector: requests and events as they pass, and what waits now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from headrace.ingest.collector.backpressure import MemoryBound
    from headrace.ingest.collector.delivery import Delivery
    from headrace.ingest.collector.responses import EventRefusal

_REQUEST_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)


class CollectorMetrics:
    """Metrics of one collector."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._requests = Counter(
            "headrace_collector_requests",
            "Requests by event (empty if refused before that was known) and HTTP status.",
            ("event", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "headrace_collector_request_seconds",
            "From the first byte of a request's body to the acknowledgement of Kafka.",
            ("event",),
            buckets=_REQUEST_S,
            registry=registry,
        )
        self._accepted = Counter(
            "headrace_collector_events",
            "Events acknowledged: Kafka has them.",
            ("event",),
            registry=registry,
        )
        self._refused = Counter(
            "headrace_collector_refused_events",
            "Events refused in requests that were accepted, by reason.",
            ("event", "reason"),
            registry=registry,
        )
        self._of_clients = Counter(
            "headrace_collector_client_requests",
            "Requests by client (the name of its token), event and HTTP status.",
            ("client", "event", "code"),
            registry=registry,
        )
        self._from_clients = Counter(
            "headrace_collector_client_events",
            "Events acknowledged, by client (the name of its token).",
            ("client", "event"),
            registry=registry,
        )

    def watch(self, bound: MemoryBound, delivery: Delivery) -> None:
        """Expose from now on what waits, and whether Kafka answers."""
        figures = {
            "waiting_requests": ("Requests not yet answered.", lambda: bound.requests),
            "waiting_events": ("Events not yet acknowledged.", lambda: bound.events),
            "kafka_up": (
                "Whether a broker answers; 1 until an outage is known.",
                lambda: delivery.down_since_s is None,
            ),
        }
        for name, (text, figure) in figures.items():
            gauge = Gauge(f"headrace_collector_{name}", text, registry=self._registry)
            gauge.set_function(figure)

    def answered(
        self,
        event: str,
        status: int,
        accepted: int,
        refused: Iterable[EventRefusal],
        client: str = "",
    ) -> None:
        """Count a request whose events were validated.

        client: the name of its token; empty without one.
        """
        if client:
            self._of_clients.labels(client, event, str(status)).inc()
            self._from_clients.labels(client, event).inc(accepted)
        self._requests.labels(event, str(status)).inc()
        self._accepted.labels(event).inc(accepted)
        for refusal in refused:
            self._refused.labels(event, refusal.reason).inc()

    def took(self, event: str, seconds: float) -> None:
        """Record the duration of a request."""
        self._seconds.labels(event).observe(seconds)

    def refused(self, event: str, status: int, client: str = "") -> None:
        """Count a request that was refused as a whole."""
        if client:
            self._of_clients.labels(client, event, str(status)).inc()
        self._requests.labels(event, str(status)).inc()
