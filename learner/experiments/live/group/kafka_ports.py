"""The edge of a runner in a group, on Kafka.

A runner is a static member of the consumer group under a name of its own: the group notices within
six seconds that it was killed. A runner that comes back has another name. All messages are in the
first partition; the others are only assigned.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.kafka import (
    AtEnd,
    KafkaReader,
    PartitionAssigned,
    PartitionRevoked,
    Record,
    Source,
    TopicSpec,
    ensure_topics,
    read_all,
)
from headrace.ingest.runtime import unique_name
from headrace.learner.experiments.live.group.group_ports import TOKENS, GroupPorts, GroupRecord
from headrace.learner.experiments.live.history_topic import (
    EXPERIMENTS_TOPIC,
    group_record_of,
    publish_group_record,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from headrace.ingest.kafka import KafkaSettings, Reader, Writer

_ASK_EVERY_S = 0.2
"""For changes of the group."""
_CHANGING_S = 15.0
"""Time for which a member may have no partitions while the group assigns them anew."""
_RETENTION_MS = 7 * 24 * 3600 * 1000
"""Much longer than the time between two saves; messages before a save are of no use."""


def group_topic(name: str) -> str:
    """Return the topic of an experiment's group."""
    return f"sums.{name}"


class KafkaGroupLog:
    """The messages of a group in the first partition of its topic."""

    def __init__(self, reader: Reader, writer: Writer, topic: str) -> None:
        self._reader, self._writer, self._source = reader, writer, Source(topic, 0)
        self.at_end = False
        self._reader.poll(0.0)

    def start(self, offset: int) -> None:
        """Read from this offset, or from the first that is left."""
        first, _ = self._reader.held(self._source)
        self._reader.start({self._source: max(offset, first)})
        self.at_end = False

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """Return offsets and messages; wait for the first up to `timeout_s`."""
        found = []
        for event in self._reader.poll(timeout_s):
            if isinstance(event, Record):
                found.append((event.offset, event.value))
                self.at_end = False
            elif isinstance(event, AtEnd):
                self.at_end = True
        return found

    def end(self) -> int:
        """Return the offset behind the last message."""
        return self._reader.held(self._source)[1]

    def send(self, message: bytes) -> None:
        """Append a message, soon."""
        self._writer.send(self._source, message)


class KafkaMembership:
    """The partitions that Kafka assigned to this member."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._assigned: set[int] = set()
        self._tokens: frozenset[int] = frozenset()
        self._next_s = 0.0

    def tokens(self) -> frozenset[int]:
        """Return the tokens now; while they are assigned anew, wait."""
        if time.monotonic() >= self._next_s:
            self._poll(0.0)
            until_s = time.monotonic() + _CHANGING_S
            while self._tokens and not self._assigned and time.monotonic() < until_s:
                self._poll(_ASK_EVERY_S)
            self._tokens = frozenset(self._assigned)
            self._next_s = time.monotonic() + _ASK_EVERY_S
        return self._tokens

    def _poll(self, timeout_s: float) -> None:
        for event in self._reader.poll(timeout_s):
            if isinstance(event, PartitionAssigned):
                self._assigned.add(event.source.partition)
            elif isinstance(event, PartitionRevoked):
                self._assigned.discard(event.source.partition)


class KafkaGroupRegistry:
    """The record of a group in the topic of experiments."""

    def __init__(self, kafka: KafkaSettings, writer: Writer, name: str) -> None:
        self._kafka, self._writer, self._name = kafka, writer, name

    def read(self) -> GroupRecord | None:
        """Return the record; None before the first runner."""
        value = group_record_of(read_all(self._kafka, EXPERIMENTS_TOPIC), self._name)
        return None if value is None else msgspec.json.decode(value, type=GroupRecord)

    def write(self, record: GroupRecord) -> None:
        """Publish the record."""
        publish_group_record(self._writer, self._name, msgspec.json.encode(record))


def _pause(stop: threading.Event) -> None:
    stop.wait(_ASK_EVERY_S)


@contextmanager
def opened_group_ports(
    kafka: KafkaSettings, writer: Writer, name: str, stop: threading.Event
) -> Iterator[GroupPorts]:
    """Join the group of an experiment. Raises the errors of `KafkaReader`."""
    topic = group_topic(name)
    kept = {"retention.ms": str(_RETENTION_MS)}
    ensure_topics(kafka, [TopicSpec(topic, TOKENS, {"cleanup.policy": "delete"}, kept)])
    with ExitStack() as stack:
        reader = stack.enter_context(closing(KafkaReader(kafka, None, [topic])))
        group, instance = f"headrace.{topic}", unique_name()
        member = stack.enter_context(closing(KafkaReader(kafka, group, [topic], instance)))
        yield GroupPorts(
            KafkaGroupLog(reader, writer, topic),
            KafkaMembership(member),
            KafkaGroupRegistry(kafka, writer, name),
            time.monotonic,
            lambda: _pause(stop),
        )
