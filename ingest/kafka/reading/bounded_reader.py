"""Reads topics up to an offset: to the offsets of a time, or to the present end.

A rebuild of a model must stop at the same offsets however much was appended since. The bound is a
wrapper around a reader, so that the loop that learns live data learns history too.

The present end of a partition is its high watermark: every message below it is in Kafka. A reader
of committed records gets no further than the last stable offset, which is lower while a transaction
is open. It is also lower for a moment after `commit_transaction` has returned. Kafka acknowledges a
commit once its coordinator has logged it, and only then writes the markers into the partitions.
Measured on one broker, 79 commits of 300 were acknowledged before their markers, by up to 0.5 s. So
the last stable offset is refused as the end: a read would miss records committed before it began.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.protocols import (
    AtEnd,
    PartitionAssigned,
    PartitionRevoked,
    Reader,
    ReaderEvent,
    ReadPosition,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.log_bounds import LATEST, log_offsets
from headrace.ingest.kafka.retry import retry_for
from headrace.ingest.kafka.settings import TRANSACTION_TIMEOUT_MS, KafkaSettings
from headrace.ingest.kafka.topics import check_co_partitioned

_ABORT_INTERVAL_S = 10.0
"""Kafka's default of transaction.abort.timed.out.transaction.cleanup.interval.ms."""

_FEW_RECORDS = 16
"""Offsets that the search for the last record reads first."""

LONGEST_TRANSACTION_S = TRANSACTION_TIMEOUT_MS / 1000 + _ABORT_INTERVAL_S
"""The time in which Kafka aborts the transaction of a headrace process that died in it."""


class BoundedReader:
    """Wraps a reader, and ends each source at its bound."""

    def __init__(self, reader: Reader, stops: Mapping[Source, int]) -> None:
        """`stops`: for each source, the first offset that is not read."""
        self._reader, self._stops = reader, dict(stops)
        self._ended: set[Source] = set()

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        """Return the events before the bounds, and one AtEnd for each bound reached."""
        events: list[ReaderEvent] = []
        for event in self._reader.poll(timeout_s):
            source = event.source
            if isinstance(event, PartitionRevoked):
                self._ended.discard(source)
            reached = isinstance(event, Record | AtEnd) and event.offset >= self._stops[source]
            if not reached:
                events.append(event)
            elif source not in self._ended:
                self._ended.add(source)
                self._reader.pause([source])
                events.append(AtEnd(source, self._stops[source]))
        return events

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets."""
        again = self._ended & offsets.keys()
        self._ended -= again
        self._reader.resume(again)
        self._reader.start(offsets)

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing from these sources until `resume`."""
        self._reader.pause(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        """Undo `pause`."""
        self._reader.resume([source for source in sources if source not in self._ended])

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:
        """Return the first offset that Kafka still has of the source, and its bound."""
        return self._reader.bounds(source, reached)[0], self._stops[source]

    def truncated(self, positions: Mapping[Source, ReadPosition]) -> list[Source]:
        """Return the sources whose logs lost records before these positions."""
        return self._reader.truncated(positions)

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic."""
        return self._reader.topic_id(topic)

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Do nothing: history read again is not progress."""

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def offsets_at(settings: KafkaSettings, topic: str, at_ms: int) -> dict[Source, int]:
    """Return, for each partition, the first offset appended at that time or later.

    A partition without such an offset has its present end. Waits for transactions that hide records
    below these offsets: a reader of committed records cannot read up to them before they end.
    Raises KafkaUnreachable, also if a transaction stays open; MissingTopic.
    """
    count = check_co_partitioned(settings, [topic])
    sources = [Source(topic, partition) for partition in range(count)]
    admin = AdminClient(settings.connection())
    ends = log_offsets(settings, admin, sources)
    found = log_offsets(settings, admin, sources, OffsetSpec.for_timestamp(at_ms))
    stops = {
        source: end.offset if found[source].offset < 0 else found[source].offset
        for source, end in ends.items()
    }

    def check_stable() -> None:
        stable = log_offsets(settings, admin, sources, LATEST, IsolationLevel.READ_COMMITTED)
        hidden = {source: stop for source, stop in stops.items() if stable[source].offset < stop}
        if hidden:
            raise still_open(settings, hidden)

    retry_for(patience_s(settings))(check_stable)
    return stops


def read_all(settings: KafkaSettings, topic: str) -> Generator[Record]:
    """Yield every committed record of a topic, from its beginning to its present end.

    In order within a partition. Waits for transactions that are open now, or whose markers are
    still to be written. Raises KafkaUnreachable, also if one stays open; MissingTopic.
    """
    yield from read_until(settings, topic, high_watermarks(settings, topic))


def high_watermarks(settings: KafkaSettings, topic: str) -> dict[Source, int]:
    """Return the present end of each partition, open transactions included."""
    with closing(KafkaReader(settings, None, [topic], read_committed=False)) as reader:
        return {source: reader.bounds(source)[1] for source in _gained(reader)}


def read_until(settings: KafkaSettings, topic: str, ends: Mapping[Source, int]) -> Iterator[Record]:
    """Yield the committed records of a topic below `ends`, waiting for transactions still open.

    Raises KafkaUnreachable if nothing comes for longer than `patience_s`.
    """
    with closing(KafkaReader(settings, None, [topic])) as reader:
        firsts = {source: reader.bounds(source)[0] for source in _gained(reader)}
        yield from _read(settings, reader, firsts, ends)


def _read_between(
    settings: KafkaSettings, begins: Mapping[Source, int], ends: Mapping[Source, int]
) -> Iterator[Record]:
    [topic] = {source.topic for source in begins}
    with closing(KafkaReader(settings, None, [topic])) as reader:
        reader.pause(source for source in _gained(reader) if source not in begins)
        yield from _read(settings, reader, begins, ends)


def _read(
    settings: KafkaSettings,
    reader: KafkaReader,
    begins: Mapping[Source, int],
    ends: Mapping[Source, int],
) -> Iterator[Record]:
    reading = {source for source, end in ends.items() if begins[source] < end}
    reader.start({source: begins[source] for source in reading})
    heard_s = time.monotonic()
    while reading:
        heard = False
        for event in reader.poll(0.5):
            if not isinstance(event, Record | AtEnd) or event.source not in reading:
                continue
            heard = True
            if event.offset >= ends[event.source]:
                reading.discard(event.source)
            elif isinstance(event, Record):
                yield event
        if heard:
            heard_s = time.monotonic()
        elif time.monotonic() - heard_s > patience_s(settings):
            raise still_open(settings, {source: ends[source] for source in reading})


def last_records(settings: KafkaSettings, sources: Iterable[Source]) -> dict[Source, Record]:
    """Return the last committed record of each of these partitions of one topic; none if empty.

    Raises KafkaUnreachable, also if a transaction stays open.
    """
    bounds = _bounds(settings, sources)
    ends = {source: end for source, (_, end) in bounds.items()}
    found = records_before(settings, ends, lambda _: True)
    return {source: records[0] for source, records in found.items()}


def records_before(
    settings: KafkaSettings, ends: Mapping[Source, int], enough: Callable[[Record], bool]
) -> dict[Source, list[Record]]:
    """Return the last committed records before these offsets of one topic, in order.

    From the last one that is `enough` on; all if none is. A partition without any is missing. Reads
    back in growing steps, since markers of transactions have offsets too. Raises KafkaUnreachable,
    also if a transaction stays open.
    """
    bounds = {
        source: (first, ends[source]) for source, (first, _) in _bounds(settings, ends).items()
    }
    found: dict[Source, list[Record]] = {source: [] for source in bounds}
    complete: set[Source] = set()
    step = _FEW_RECORDS
    while unread := [s for s, (first, end) in bounds.items() if s not in complete and first < end]:
        begins = {source: max(bounds[source][0], bounds[source][1] - step) for source in unread}
        read: dict[Source, list[Record]] = {source: [] for source in unread}
        for record in _read_between(settings, begins, {s: bounds[s][1] for s in unread}):
            if enough(record):
                read[record.source].clear()
                complete.add(record.source)
            read[record.source].append(record)
        for source, records in read.items():
            found[source] = records + found[source]
            bounds[source] = bounds[source][0], begins[source]
        step *= 16
    return {source: records for source, records in found.items() if records}


def _bounds(settings: KafkaSettings, sources: Iterable[Source]) -> dict[Source, tuple[int, int]]:
    sources = list(sources)
    if not sources:
        return {}
    with closing(KafkaReader(settings, None, [sources[0].topic], read_committed=False)) as reader:
        _gained(reader)
        return {source: reader.bounds(source) for source in sources}


def patience_s(settings: KafkaSettings) -> float:
    """Return how long to wait for an open transaction to end, or for a broker to come back."""
    return max(settings.lost_timeout_s, LONGEST_TRANSACTION_S) + settings.connect_timeout_s


def still_open(settings: KafkaSettings, ends: Mapping[Source, int]) -> KafkaUnreachable:
    """Return the error that says in which partitions a transaction does not end."""
    where = ", ".join(f"{source.topic}/{source.partition} to {end}" for source, end in ends.items())
    return KafkaUnreachable(
        f"expected committed records of {where}, got none for {patience_s(settings):.0f} s: a "
        "transaction is still open there. Try again; `kafka-transactions.sh find-hanging` names "
        "one that never ends"
    )


def _gained(reader: KafkaReader) -> list[Source]:
    return [h.source for h in reader.poll(0.0) if isinstance(h, PartitionAssigned)]
