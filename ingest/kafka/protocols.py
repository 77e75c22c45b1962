"""Where records come from and where they go: two small protocols, and their fakes.

The running parts (joiner, learner) see Kafka only through `Reader` and `Writer`; `ingest.kafka`
has the real ones. What happens to a reader besides records (partitions gained and lost, an end
reached) is data in the batch that `poll` returns, in the order it happened, so that a test can
write it down as a list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt


class Source(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One message."""

    source: Source
    offset: int
    append_ms: int
    """When Kafka appended it (or its create time, where the topic keeps that)."""
    value: bytes
    key: bytes | None = None
    """Of an event its impression id: what chose the partition. A dead letter keeps it."""


class MessageBlock(NamedTuple):
    """Consecutive messages of one source, in columns: a hundred thousand a second leave no time to
    make an object of each.
    """

    source: Source
    offsets: npt.NDArray[np.int64]  # (n,)
    append_ms: npt.NDArray[np.int64]  # (n,)
    values: Sequence[bytes]
    keys: Sequence[bytes | None]

    @classmethod
    def of(cls, records: Sequence[Record]) -> MessageBlock:
        """Return one or more records of one source as a block."""
        return cls(
            records[0].source,
            np.array([record.offset for record in records], np.int64),
            np.array([record.append_ms for record in records], np.int64),
            [record.value for record in records],
            [record.key for record in records],
        )

    @property
    def size(self) -> int:
        """How many messages they are."""
        return len(self.values)

    def record(self, place: int) -> Record:
        """Return one of the messages."""
        offset, append_ms = int(self.offsets[place]), int(self.append_ms[place])
        return Record(self.source, offset, append_ms, self.values[place], self.keys[place])

    def records(self) -> list[Record]:
        """Return all of them."""
        columns = zip(
            self.offsets.tolist(), self.append_ms.tolist(), self.values, self.keys, strict=True
        )
        return [Record(self.source, *each) for each in columns]


class AtEnd(NamedTuple):
    """Every record that a source now has was delivered. The next record of it takes this back."""

    source: Source
    offset: int
    """First offset not yet there. Past the last record's by the markers of transactions."""


class PartitionAssigned(NamedTuple):
    """The source is ours from now on. No record of it comes before `Reader.start` was called."""

    source: Source


class PartitionRevoked(NamedTuple):
    """The source is no longer ours; whatever is still held of it must be forgotten."""

    source: Source


Happening = Record | AtEnd | PartitionAssigned | PartitionRevoked


class Reader(Protocol):
    """Records of the partitions that fall to this process."""

    def poll(self, timeout_s: float) -> list[Happening]:
        """Return what happened, waiting up to `timeout_s` only while there is nothing.

        Raises KafkaUnreachable when no broker answered for longer than the settings allow.
        """

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets on, dropping what was fetched of them before."""

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing of these until `resume`: they run ahead of the others."""

    def resume(self, sources: Iterable[Source]) -> None:
        """Take `pause` back."""

    def held(self, source: Source) -> tuple[int, int]:
        """Return the first offset the source still holds and the first it does not yet hold."""

    def topic_id(self, topic: str) -> str:
        """Return the identity that Kafka gave the topic: another one after it was made again."""

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Tell Kafka how far we are, without waiting: for lag dashboards alone."""

    def close(self) -> None:
        """Leave the group."""


class BlockReader(Reader, Protocol):
    """A reader that also gives records in columns."""

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """Return what `poll` would, in blocks."""


class Writer(Protocol):
    """Messages out, in order for each partition, each once (idempotent, acks=all)."""

    def send(self, target: Source, value: bytes, key: bytes | None = None) -> None:
        """Queue a message, waiting while the queue is full."""

    def flush(self) -> None:
        """Wait until Kafka has everything sent. Raises KafkaUnreachable or WriteRefused."""

    def close(self) -> None:
        """Flush and disconnect."""
