"""The collector process: the Kafka producer, the HTTP server, their ports, and a clean stop.

Requests under way at the stop get their answer once Kafka has their events.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.ingest.collector.app import CollectorParts, make_app
from headrace.ingest.collector.backpressure import CollectorLimits, MemoryBound
from headrace.ingest.collector.collector_metrics import CollectorMetrics
from headrace.ingest.collector.delivery import Delivery
from headrace.ingest.events.json_schema import EventKind
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, check_co_partitioned
from headrace.ingest.status import status_in
from headrace.runtime.http.http_errors import BadTokens
from headrace.runtime.http.listen_settings import ListenSettings
from headrace.runtime.http.metrics_server import new_registry
from headrace.runtime.http.server import Draining, Readiness, listening_socket, run_app
from headrace.runtime.http.token_files import RereadTokens, rereading
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits
from headrace.runtime.process import running_process

log = logging.getLogger(__name__)

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""A batch makes thousands of objects and no reference cycle."""


@dataclass(frozen=True, slots=True)
class CollectorSettings(ListenSettings):
    """Settings that may differ between two collectors of the same topics."""

    port: int = 8090
    """0: a free port, which the log names."""
    deadline_s: float = 15.0
    """For Kafka to acknowledge an event, else 503: longer than a broker's restart or a change of
    leaders, shorter than the timeouts of clients."""
    linger_ms: int = 2
    """Time that an event waits for others to share a request to Kafka."""
    grants: Sequence[TokenGrant] = field(default=(), repr=False)
    """Limits of the clients, in the order of `tokens`; empty: no limits."""
    by_request: bool = False
    """Whether the request id of an event, if it has one, is its key. False: the impression id is,
    because a click without a request id would not meet its impression."""
    topics: EventTopics = field(default_factory=EventTopics)
    limits: CollectorLimits = field(default_factory=CollectorLimits)

    @property
    def finish_s(self) -> int:
        """Time for requests under way to finish; every wait in them ends earlier."""
        return int(self.deadline_s) + 2


def refuse_models(grants: Sequence[TokenGrant]) -> None:
    """Raise BadTokens if a line names models."""
    if any(each.models for each in grants):
        raise BadTokens(
            "--tokens: expected name= and requests_per_second= after a collector's token, got "
            "models=; events belong to no model, so use another file for servers"
        )


def run_collector(
    settings: CollectorSettings,
    kafka: KafkaSettings,
    stop: threading.Event,
    listening: Callable[[int], None] = lambda _: None,
) -> None:
    """Collect until `stop` is set, then finish the requests under way.

    Calls `listening` with the port once the collector accepts requests. Raises BadTokens,
    AddressTaken, KafkaUnreachable if no broker answers at the start, MissingTopic, TopicMismatch,
    and the error that ended the producer.
    """
    tokens = settings.checked_tokens("--tokens / HEADRACE_COLLECT_TOKENS")
    refuse_models(settings.grants)
    clients, topics = TokenLimits(settings.grants), settings.topics
    check_co_partitioned(kafka, [topics.impressions, topics.clicks])
    registry = new_registry()
    metrics, bound, readiness = (
        CollectorMetrics(registry),
        MemoryBound(settings.limits),
        Readiness(),
    )
    with (
        listening_socket(settings.host, settings.port) as listener,
        contextlib.closing(Delivery(kafka, settings.deadline_s, settings.linger_ms)) as delivery,
        running_process(
            "collector",
            status_in(kafka),
            registry,
            settings.metrics_address,
            objects_between_collections=_OBJECTS_BETWEEN_COLLECTIONS,
        ) as health,
    ):
        metrics.watch(bound, delivery)
        targets = {EventKind.IMPRESSION: topics.impressions, EventKind.CLICK: topics.clicks}
        app = make_app(
            CollectorParts(
                *(targets, delivery, bound, tokens, clients, metrics, readiness),
                by_request=settings.by_request,
            )
        )
        listening(listener.getsockname()[1])
        log.info("collecting on http://%s:%d", *listener.getsockname()[:2])

        health.ready_when(
            lambda: delivery.down_since_s is None and delivery.failure is None and not stop.is_set()
        )

        def broken() -> bool:
            health.stepped()  # the event loop asks while it is alive
            return delivery.failure is not None

        leaving = Draining(stop, readiness, broken, settings.drain_ms, settings.finish_s)
        with rereading(RereadTokens(settings.tokens_from, tokens, clients, refuse_models)):
            run_app(
                *(app, listener, leaving, (delivery.run, delivery.probe)),
                local_only=settings.local_only,
            )
    if delivery.failure is not None:
        raise delivery.failure
