"""The joiner process: the loop with its clients, clock and metrics.

`run_joiner` joins until it is stopped. `read_state` reports the progress of a joiner from any
process.
"""

import dataclasses
import logging
import threading
from dataclasses import dataclass, field

from prometheus_client import REGISTRY

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.committed_state import JoinerState, StateReader, read_state
from headrace.ingest.joiner.joiner_metrics import JoinerCollector
from headrace.ingest.joiner.loop import Joiner, JoinerPacing
from headrace.ingest.kafka.reading.log_bounds import LogBounds
from headrace.ingest.kafka.reading.read_lag import ReadLag
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    EventTopics,
    check_co_partitioned,
    check_topic_settings,
    examples_topic,
    joiner_group,
    topics_for,
)
from headrace.ingest.kafka.transactional_ports import open_ports
from headrace.ingest.status import status_in
from headrace.runtime.process import running_process

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
"""Wait of a step for events; cores that wait for wall time advance in every step."""


_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""More than the objects of one poll, which all die before the next poll. With Python's default of
700, reading five thousand messages ran seven collections, which took half of the time."""


@dataclass(frozen=True, slots=True)
class JoinerSettings:
    """Settings that may differ between two joiners of the same model."""

    instance: str = ""
    """A name that stays the same over restarts: the process gets its partitions back at once, and
    ends the open transaction of its predecessor. Two joiners need two names. Empty: a new name at
    each start; partitions move when processes come and go, and the other joiners go on meanwhile.
    Either all joiners of a model have names or none has."""
    metrics_port: int = 0
    """0: serve no metrics."""
    metrics_host: str = "127.0.0.1"
    """Metrics contain no event data."""
    join_again: bool = False
    """Whether to join from the first event where Kafka has forgotten the committed offsets and the
    examples carry no position either: an older headrace wrote them. They are then made twice."""
    topics: EventTopics = field(default_factory=EventTopics)
    pace: JoinerPacing = field(default_factory=JoinerPacing)


def run_joiner(
    settings: JoinerSettings,
    kafka: KafkaSettings,
    model: str,
    fields: FieldSet,
    stop: threading.Event,
) -> None:
    """Join until `stop` is set, then commit and close.

    Raises the errors of `ingest.errors`, all of which need an operator; Fenced if another process
    of the same instance took over.
    """
    topics, group = settings.topics, joiner_group(model)
    check_co_partitioned(kafka, [topics.impressions, topics.clicks, examples_topic(model)])
    check_co_partitioned(kafka, [topics.dead_letters])
    used = {*dataclasses.astuple(topics), examples_topic(model)}
    specs = topics_for(model, events=topics)
    check_topic_settings(kafka, [spec for spec in specs if spec.name in used])
    inputs = [topics.impressions, topics.clicks]
    with open_ports(kafka, group, inputs, settings.instance, stop) as ports:
        joiner = Joiner(ports, model, fields, topics, settings.pace, join_again=settings.join_again)
        lag = ReadLag("headrace_joiner_lag", {"model": model})
        lag.follow(LogBounds(kafka), joiner.positions)
        frame = running_process(
            "joiner",
            status_in(kafka),
            REGISTRY,
            (settings.metrics_host, settings.metrics_port),
            collectors=[JoinerCollector(model, joiner), lag],
            objects_between_collections=_OBJECTS_BETWEEN_COLLECTIONS,
        )
        try:
            with frame as health:
                health.ready_when(lambda: ports.reader.settled)
                health.watch(joiner.progress, lag.behind)
                while not stop.is_set():
                    joiner.step(_STEP_S)
                    health.stepped()
                joiner.finish()
        except KafkaUnreachable:
            if not stop.is_set():
                raise
            log.warning("stopped while Kafka was unreachable: its events will be read again")
