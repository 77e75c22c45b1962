"""The joiner as a process: the loop with its clients, clock and metrics.

`run_joiner` joins until it is told to stop; `read_state` tells from anywhere what was joined.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.joiner.committed_state import JoinerState, StateReader, read_state
from headrace.ingest.joiner.joiner_metrics import JoinerCollector
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka import (
    EventTopics,
    KafkaReader,
    KafkaTransactions,
    check_co_partitioned,
    examples_topic,
    joiner_group,
    retry_until,
)
from headrace.ingest.runtime import running_process, steady_ms

if TYPE_CHECKING:
    import threading

    from headrace.ingest.features import FieldSet
    from headrace.ingest.kafka import KafkaSettings

__all__ = [
    "JoinerPacing",
    "JoinerSettings",
    "JoinerState",
    "StateReader",
    "read_state",
    "run_joiner",
]

log = logging.getLogger(__name__)

_STEP_S = 0.01
"""A step waits no longer for events: wall time passes in cores that wait for it."""


_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""More than a poll makes, which are gone before the next: Python's own 700 had it look for cycles
in five thousand messages seven times while they were read, for half of the time of reading."""


@dataclass(frozen=True, slots=True)
class JoinerSettings:
    """What may differ between two joiners of the same model."""

    instance: str = ""
    """Name that stays over restarts: the process gets its partitions back at once, and what its
    predecessor left half done is undone. "" is a name too; two joiners need two names."""
    metrics_port: int = 0
    """0: serve no metrics."""
    metrics_host: str = "0.0.0.0"  # noqa: S104 - a scraper runs on another machine
    """Metrics contain no event data."""
    topics: EventTopics = field(default_factory=EventTopics)
    pace: JoinerPacing = field(default_factory=JoinerPacing)


def run_joiner(
    settings: JoinerSettings,
    kafka: KafkaSettings,
    model: str,
    fields: FieldSet,
    stop: threading.Event,
) -> None:
    """Join until `stop` is set; then write what was made and leave.

    Raises the errors of `ingest.errors`, all of which an operator has to look at; Fenced if another
    process of the same instance took over.
    """
    topics, group = settings.topics, joiner_group(model)
    check_co_partitioned(kafka, [topics.impressions, topics.clicks, examples_topic(model)])
    check_co_partitioned(kafka, [topics.dead_letters])
    instance = settings.instance or "0"
    reader = KafkaReader(kafka, group, [topics.impressions, topics.clicks], instance=instance)
    try:
        transactions = KafkaTransactions(kafka, f"{group}.{instance}", reader)
    except BaseException:
        reader.close()
        raise
    joiner = Joiner(
        reader=reader,
        transactions=transactions,
        model=model,
        fields=fields,
        topics=topics,
        pace=settings.pace,
        now_ms=steady_ms,
        rest=stop.wait,
        restoring=retry_until(stop, kafka.lost_timeout_s),
        give_up_s=kafka.lost_timeout_s,
    )
    frame = running_process(
        "joiner",
        kafka,
        REGISTRY,
        (settings.metrics_host, settings.metrics_port),
        collectors=[JoinerCollector(model, joiner, reader)],
        objects_between_collections=_OBJECTS_BETWEEN_COLLECTIONS,
    )
    try:
        with frame:
            while not stop.is_set():
                joiner.step(_STEP_S)
            joiner.finish()
    except KafkaUnreachable:
        if not stop.is_set():
            raise
        log.warning("stopped while Kafka was unreachable: the next joiner reads again")
    finally:
        transactions.close()
        reader.close()
