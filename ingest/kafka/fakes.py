"""Kafka in memory: the fakes of `Reader`, `Writer` and `Transactions`, shipped beside them.

A broker's content is in plain attributes, which a test fills and reads. A fake outlives the process
that uses it. A second joiner or learner with the same lists continues where the test dropped the
first one: that is how a test writes a crash.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.protocols import (
    AtEnd,
    Committed,
    MessageBlock,
    PartitionAssigned,
    PartitionRevoked,
    ReaderEvent,
    ReadPosition,
    Record,
    Source,
)
from headrace.ingest.kafka.retry import AbortBackoff, retry_for
from headrace.ingest.kafka.transactional_ports import TransactionalPorts

if TYPE_CHECKING:
    from headrace.ingest.kafka.transactions import Outgoing, Transactions


class SentMessage(NamedTuple):
    """One message sent to a `ListWriter`."""

    target: Source
    value: bytes
    key: bytes | None


class ListReader:
    """A reader of lists. The first poll assigns every source of `records`.

    Records have their own offsets, so a test can write gaps (transaction markers). `append`
    extends a source during reading; `lose` and `gain` simulate a rebalance.
    """

    def __init__(
        self, records: Mapping[Source, Sequence[Record]], *, largest_poll: int = 1_000
    ) -> None:
        self.records = {source: list(own) for source, own in records.items()}
        self.largest_poll = largest_poll
        self.committed: dict[Source, int] = {}
        """The last `commit` of each source."""
        self.paused: set[Source] = set()
        self.closed = False
        self.cut: dict[Source, int] = {}
        """By source, the offset from which its log was cut off and written again."""
        self.old_end: int | None = None
        """The end of every source to a broker that was cut off."""
        self._news: list[ReaderEvent] = [PartitionAssigned(source) for source in self.records]
        self._ours: set[Source] = set()
        self._positions: dict[Source, int] = {}
        self._reported_end: dict[Source, int] = {}

    def append(self, source: Source, value: bytes, append_ms: int = 0) -> Record:
        """Append a record to a source and return it."""
        record = Record(source, self.bounds(source)[1], append_ms, value)
        self.records[source].append(record)
        return record

    def lose(self, source: Source) -> None:
        """Revoke the source; the next poll reports it."""
        self._forget(source)
        self._news.append(PartitionRevoked(source))

    def gain(self, source: Source) -> None:
        """Assign the source; the next poll reports it."""
        self._forget(source)
        self._news.append(PartitionAssigned(source))

    def poll(self, timeout_s: float) -> list[ReaderEvent]:  # noqa: ARG002
        """Return changes first, then records source by source, then ends reached. Never waits."""
        events, self._news = self._news, []
        for news in events:
            (self._ours.add if isinstance(news, PartitionAssigned) else self._ours.discard)(
                news.source
            )
        left = self.largest_poll
        for source, position in sorted(self._positions.items()):
            if source in self.paused:
                continue
            records = [r for r in self.records[source] if r.offset >= position][:left]
            left -= len(records)
            events += records
            if records:
                self._positions[source] = records[-1].offset + 1
                self._reported_end.pop(source, None)
            end = self.bounds(source)[1]
            if self._positions[source] >= end and self._reported_end.get(source) != end:
                self._reported_end[source] = end
                events.append(AtEnd(source, end))
        return events

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """Return the result of `poll` in blocks."""
        events: list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked] = []
        runs = itertools.groupby(self.poll(timeout_s), lambda h: (type(h), h.source))
        for (kind, _), run in runs:
            if kind is Record:
                events.append(MessageBlock.of(cast("list[Record]", list(run))))
            else:
                events += cast("list[AtEnd | PartitionAssigned | PartitionRevoked]", list(run))
        return events

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets."""
        for source, offset in offsets.items():
            if source in self._ours:
                self._positions[source] = offset
                self._reported_end.pop(source, None)

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing from these sources until `resume`."""
        self.paused.update(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        """Undo `pause`."""
        self.paused.difference_update(sources)

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:
        """Return the first offset of the source, and the first after its last record."""
        records = self.records[source]
        if self.old_end is not None and not reached:
            return 0, self.old_end
        return (records[0].offset, records[-1].offset + 1) if records else (0, 0)

    def truncated(self, positions: Mapping[Source, ReadPosition]) -> list[Source]:
        """Return the sources that were cut before these positions, see `cut`."""
        return [
            s for s, position in positions.items() if position.offset > self.cut.get(s, 1 << 62)
        ]

    def topic_id(self, topic: str) -> str:
        """Return an id derived from the name."""
        return f"id-of-{topic}"

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Store the offsets in `committed`."""
        self.committed.update(offsets)

    def close(self) -> None:
        """Record the call."""
        self.closed = True

    def _forget(self, source: Source) -> None:
        self._positions.pop(source, None)
        self._reported_end.pop(source, None)
        self.paused.discard(source)
        self._ours.discard(source)


class ListWriter:
    """A writer that appends to a list."""

    def __init__(self) -> None:
        self.sent: list[SentMessage] = []
        self.flushed = 0
        """Length of `sent` at the last flush."""
        self.closed = False

    def send(self, target: Source, value: bytes, key: bytes | None = None) -> None:
        """Append the message."""
        self.sent.append(SentMessage(target, value, key))

    def flush(self) -> None:
        """Record that all messages are delivered."""
        self.flushed = len(self.sent)

    def close(self) -> None:
        """Flush."""
        self.flush()
        self.closed = True


class ListTransactions:
    """Transactions on a list of messages and a table of offsets."""

    def __init__(self) -> None:
        self.written: list[Outgoing] = []
        self.offsets: dict[Source, Committed] = {}
        self.count = 0
        """Committed transactions."""
        self.failures: list[StreamError] = []
        """Each makes one `write` fail before it writes anything, in this order."""
        self.closed = False

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the committed offset of each source."""
        return {source: self.offsets[source] for source in sources if source in self.offsets}

    def tail(
        self, targets: Iterable[Source], enough: Callable[[bytes], bool]
    ) -> dict[Source, list[bytes]]:
        """Return the last messages of each of these partitions."""
        values = {target: list(self.history(target)) for target in targets}
        return {target: tail_of(written, enough) for target, written in values.items() if written}

    def history(self, target: Source) -> Iterator[bytes]:
        """Yield the values of the messages written to a partition."""
        return (each.value for each in self.written if each.target == target)

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        """Store everything, or raise the next of `failures`."""
        if self.failures:
            raise self.failures.pop(0)
        self.written += messages
        self.offsets.update(offsets)
        self.count += 1

    def close(self) -> None:
        """Record the call."""
        self.closed = True


def tail_of(values: Sequence[bytes], enough: Callable[[bytes], bool]) -> list[bytes]:
    """Return the last values, from the last one that is `enough` on; all if none is."""
    begins = [place for place, value in enumerate(values) if enough(value)]
    return list(values[begins[-1] if begins else 0 :])


def memory_ports(
    reader: ListReader,
    transactions: Transactions,
    now_ms: Callable[[], int] = lambda: 0,
    rest: Callable[[float], object] = lambda _: None,
) -> TransactionalPorts[ListReader]:
    """Return the edge of a loop in memory. A clock that never advances never gives up."""
    aborts = AbortBackoff(60.0, now_ms, rest)
    return TransactionalPorts(reader, transactions, now_ms, aborts, retry_for(0.0))
