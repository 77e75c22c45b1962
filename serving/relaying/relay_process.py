"""Runs a relay as a process: the loop with its store, Kafka clients, clock and metrics.

One relay of a model writes at a time. A second one fences the first, reads the topic and continues.
The first one ends at its next write.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from prometheus_client import Metric

from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions
from headrace.ingest.kafka.watchdog import Watchdog
from headrace.ingest.status import status_in
from headrace.pserver.relay.relay_section import RelayForm
from headrace.pserver.store import Store
from headrace.runtime.clock import steady_ms
from headrace.runtime.http.metrics_server import new_registry
from headrace.runtime.process import running_process
from headrace.runtime.process_metrics import ModelCollector
from headrace.serving.relaying.relay_loop import RelayLoop, RelayPolicy
from headrace.serving.relaying.relay_topic import relay_topic_spec

log = logging.getLogger(__name__)

_POLL_S = 0.02
"""Longest pause between two polls of the logs, as in a server."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of a relay process."""

    policy: RelayPolicy = field(default_factory=RelayPolicy)
    metrics_port: int = 0
    """0: no metrics."""
    metrics_host: str = "127.0.0.1"


def run_relay(
    settings: RelaySettings,
    kafka: KafkaSettings,
    store: Store,
    stop: threading.Event,
    form: RelayForm | None = None,
) -> None:
    """Relay a model until `stop` is set. Creates the topic if it is missing.

    form: what of rows to write; None: rows as the logs have them.
    Raises Fenced if another relay of the model starts, the errors of `ingest.errors`, and every
    StoreError but Unreachable.
    """
    shape = store.shape()
    ensure_topics(kafka, [relay_topic_spec(shape.model, settings.policy.base_interval_ms)])
    name = f"headrace.{shape.model}.relay"
    with (
        closing(KafkaOffsets(kafka, name)) as offsets,
        closing(KafkaTransactions(kafka, name, offsets, Watchdog(stop))) as transactions,
    ):
        relay = RelayLoop(store, shape, transactions, settings.policy, steady_ms, form)
        registry = new_registry()
        address = settings.metrics_host, settings.metrics_port
        collectors = [RelayCollector(shape.model, relay)]
        with running_process(
            "relay", status_in(kafka), registry, address, collectors=collectors
        ) as health:
            health.ready_when(lambda: relay.replica.complete)
            while not stop.is_set():
                relay.step()
                health.stepped()
                stop.wait(min(_POLL_S, relay.wait_s()))


class RelayCollector(ModelCollector):
    """The totals of one relay."""

    def __init__(self, model: str, relay: RelayLoop) -> None:
        super().__init__("relay", model)
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        relay = self._relay
        for name, text, value in (
            ("blocks", "Blocks of rows written.", relay.blocks_written),
            ("failed_writes", "Writes that Kafka did not confirm.", relay.failed_writes),
        ):
            yield self._counter(name, text, value)
        yield self._gauge(
            "unwritten_seconds",
            "Age of the oldest change that is not in the topic yet; 0 without one.",
            relay.unwritten_s,
        )
