"""Kafka in lists: the fakes of `Reader`, `Writer` and `Transactions`, shipped beside them.

What a broker would keep is in plain attributes that a test fills and looks at. A fake outlives the
process it plays for: a second joiner or learner that is given the same lists goes on where the
first one was when the test dropped it, which is how a crash is written down.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, cast

from headrace.ingest.kafka.protocols import (
    AtEnd,
    Happening,
    MessageBlock,
    PartitionAssigned,
    PartitionRevoked,
    Record,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.ingest.errors import StreamError
    from headrace.ingest.kafka.transactions import Committed, Outgoing


class SentMessage(NamedTuple):
    """One message given to a `ListWriter`."""

    target: Source
    value: bytes
    key: bytes | None


class ListReader:
    """A reader of lists. Every source of `records` is gained in the first poll.

    Records lie at their own offsets, so that gaps (markers of transactions) can be written down.
    `append` makes a source longer while it is read; `lose` and `gain` are what a rebalance does.
    """

    def __init__(
        self, records: Mapping[Source, Sequence[Record]], *, largest_poll: int = 1_000
    ) -> None:
        self.records = {source: list(held) for source, held in records.items()}
        self.largest_poll = largest_poll
        self.committed: dict[Source, int] = {}
        """By `commit`, the last of each source."""
        self.paused: set[Source] = set()
        self.closed = False
        self._news: list[Happening] = [PartitionAssigned(source) for source in self.records]
        self._ours: set[Source] = set()
        self._positions: dict[Source, int] = {}
        self._told_end: dict[Source, int] = {}

    def append(self, source: Source, value: bytes, append_ms: int = 0) -> Record:
        """Add a record at the end of a source and return it."""
        record = Record(source, self.held(source)[1], append_ms, value)
        self.records[source].append(record)
        return record

    def lose(self, source: Source) -> None:
        """Take the source away; the next poll says so."""
        self._forget(source)
        self._news.append(PartitionRevoked(source))

    def gain(self, source: Source) -> None:
        """Give the source; the next poll says so."""
        self._forget(source)
        self._news.append(PartitionAssigned(source))

    def poll(self, timeout_s: float) -> list[Happening]:  # noqa: ARG002
        """Return news first, then records source by source, then the ends reached. Never waits."""
        happened, self._news = self._news, []
        for news in happened:
            (self._ours.add if isinstance(news, PartitionAssigned) else self._ours.discard)(
                news.source
            )
        room = self.largest_poll
        for source, position in sorted(self._positions.items()):
            if source in self.paused:
                continue
            records = [r for r in self.records[source] if r.offset >= position][:room]
            room -= len(records)
            happened += records
            if records:
                self._positions[source] = records[-1].offset + 1
                self._told_end.pop(source, None)
            end = self.held(source)[1]
            if self._positions[source] >= end and self._told_end.get(source) != end:
                self._told_end[source] = end
                happened.append(AtEnd(source, end))
        return happened

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """Return what `poll` would, in blocks."""
        happened: list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked] = []
        runs = itertools.groupby(self.poll(timeout_s), lambda h: (type(h), h.source))
        for (kind, _), run in runs:
            if kind is Record:
                happened.append(MessageBlock.of(cast("list[Record]", list(run))))
            else:
                happened += cast("list[AtEnd | PartitionAssigned | PartitionRevoked]", list(run))
        return happened

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets on."""
        for source, offset in offsets.items():
            if source in self._ours:
                self._positions[source] = offset
                self._told_end.pop(source, None)

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing of these until `resume`."""
        self.paused.update(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        """Take `pause` back."""
        self.paused.difference_update(sources)

    def held(self, source: Source) -> tuple[int, int]:
        """Return the first offset held and the first not yet held."""
        records = self.records[source]
        return (records[0].offset, records[-1].offset + 1) if records else (0, 0)

    def topic_id(self, topic: str) -> str:
        """Return an identity made of the name."""
        return f"id-of-{topic}"

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Keep the offsets in `committed`."""
        self.committed.update(offsets)

    def close(self) -> None:
        """Remember that we left."""
        self.closed = True

    def _forget(self, source: Source) -> None:
        self._positions.pop(source, None)
        self._told_end.pop(source, None)
        self.paused.discard(source)
        self._ours.discard(source)


class ListWriter:
    """A writer into a list."""

    def __init__(self) -> None:
        self.sent: list[SentMessage] = []
        self.flushed = 0
        """How many of `sent` were there at the last flush."""
        self.closed = False

    def send(self, target: Source, value: bytes, key: bytes | None = None) -> None:
        """Keep the message."""
        self.sent.append(SentMessage(target, value, key))

    def flush(self) -> None:
        """Remember that all of it is delivered."""
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
        """Transactions that were committed."""
        self.failures: list[StreamError] = []
        """Each makes one `write` fail before anything of it is written, the first first."""
        self.closed = False

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return how far each source was read."""
        return {source: self.offsets[source] for source in sources if source in self.offsets}

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        """Keep all of it, or raise the next of `failures`."""
        if self.failures:
            raise self.failures.pop(0)
        self.written += messages
        self.offsets.update(offsets)
        self.count += 1

    def close(self) -> None:
        """Remember it."""
        self.closed = True
