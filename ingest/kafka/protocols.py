"""The protocols of Kafka that the rest of headrace uses: readers and writers.

Joiner and learner see Kafka only through `Reader` and `Writer`. Changes of a reader (partitions
assigned and revoked, an end reached) are data among the records that `poll` returns, in their
order, so that a test can write them as a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Source(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class ReadPosition(NamedTuple):
    """The end of what was read."""

    offset: int
    """First offset that was not read."""
    leader_epoch: int
    """Leader epoch of the last record that was read."""


class Committed(NamedTuple):
    """The position of a source in the last committed transaction."""

    offset: int
    """First offset not yet taken."""
    metadata: str
    """Text that the process stored with it, such as the joiner's checkpoint."""
    leader_epoch: int = -1
    """Leader epoch of the last record before it; -1: unknown."""


class Record(NamedTuple):
    """One message."""

    source: Source
    offset: int
    append_ms: int
    """Time when Kafka appended it (or its create time, if the topic keeps that)."""
    value: bytes
    key: bytes | None = None
    """For an event its impression id, which chose the partition. A dead letter keeps it."""
    leader_epoch: int = -1
    """Number of the partition's leader that appended it, or a later one; -1: unknown."""

    @property
    def place(self) -> str:
        """The text TOPIC/PARTITION@OFFSET."""
        return f"{self.source.topic}/{self.source.partition}@{self.offset}"


class MessageBlock(NamedTuple):
    """Consecutive messages of one source, in columns.

    At a hundred thousand messages a second an object for each would take too long.
    """

    source: Source
    offsets: npt.NDArray[np.int64]  # (n,)
    append_ms: npt.NDArray[np.int64]  # (n,)
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    leader_epoch: int = -1
    """Of the last message; -1: unknown."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> MessageBlock:
        """Return one or more records of one source as a block."""
        return cls(
            records[0].source,
            np.array([record.offset for record in records], np.int64),
            np.array([record.append_ms for record in records], np.int64),
            [record.value for record in records],
            [record.key for record in records],
            records[-1].leader_epoch,
        )

    @property
    def size(self) -> int:
        """The number of messages."""
        return len(self.values)

    def record(self, place: int) -> Record:
        """Return one of the messages."""
        offset, append_ms = int(self.offsets[place]), int(self.append_ms[place])
        value, key = self.values[place], self.keys[place]
        return Record(self.source, offset, append_ms, value, key, self.leader_epoch)

    def records(self) -> list[Record]:
        """Return all messages."""
        columns = zip(
            self.offsets.tolist(), self.append_ms.tolist(), self.values, self.keys, strict=True
        )
        return [Record(self.source, *one, self.leader_epoch) for one in columns]


class AtEnd(NamedTuple):
    """Every record that a source has now was delivered. The next record of it revokes this."""

    source: Source
    offset: int
    """First offset not yet written; transaction markers may separate it from the last record."""


class PartitionAssigned(NamedTuple):
    """The source is assigned. No record of it comes before a call of `Reader.start`."""

    source: Source


class PartitionRevoked(NamedTuple):
    """The source is revoked; the caller must forget its state."""

    source: Source


ReaderEvent = Record | AtEnd | PartitionAssigned | PartitionRevoked


class Reader(Protocol):
    """Records of the partitions assigned to this process."""

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        """Return records and changes; wait for the first of them up to `timeout_s`.

        Raises KafkaUnreachable if no broker answered for longer than the settings allow.
        """

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets, dropping records fetched before."""

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing from these sources until `resume`."""

    def resume(self, sources: Iterable[Source]) -> None:
        """Undo `pause`."""

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:
        """Return the first offset that Kafka still has, and the first that it does not have yet.

        reached: an offset that the end has reached before. A broker that was cut off answers with
        an older end until it learns of its successor, so a lower end is asked for again.
        """

    def truncated(self, positions: Mapping[Source, ReadPosition]) -> list[Source]:
        """Return the sources whose logs lost records before these positions."""

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic, which changes when the topic is recreated."""

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Commit offsets without waiting, for lag dashboards only."""

    def close(self) -> None:
        """Leave the group."""


class BlockReader(Reader, Protocol):
    """A reader that also returns records in columns."""

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """Return the result of `poll` in blocks."""


class Writer(Protocol):
    """Writes messages in order within each partition, exactly once (idempotent, acks=all)."""

    def send(self, target: Source, value: bytes, key: bytes | None = None) -> None:
        """Queue a message, waiting while the queue is full."""

    def flush(self) -> None:
        """Wait until Kafka has every message. Raises KafkaUnreachable or WriteRefused."""

    def close(self) -> None:
        """Flush and disconnect."""
