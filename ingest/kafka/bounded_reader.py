"""A topic as it was at some moment: a reader that ends there, and where that lies.

Whoever learns history again must stop at the same offsets however much has been appended since.
The bound is a wrapper, so that the loop that reads it is the one that reads live data.

A topic from its beginning to its present end: for tools, reports and tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.ingest.kafka.consumer import KafkaReader
from headrace.ingest.kafka.error_translation import translated
from headrace.ingest.kafka.protocols import (
    AtEnd,
    PartitionAssigned,
    PartitionRevoked,
    Record,
    Source,
)
from headrace.ingest.kafka.topics import check_co_partitioned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.ingest.kafka.protocols import Happening, Reader
    from headrace.ingest.kafka.settings import KafkaSettings


class BoundedReader:
    """What `reader` reads, as if each source ended at its bound."""

    def __init__(self, reader: Reader, stops: Mapping[Source, int]) -> None:
        """`stops`: of each source, the first offset that is not read."""
        self._reader, self._stops = reader, dict(stops)
        self._ended: set[Source] = set()

    def poll(self, timeout_s: float) -> list[Happening]:
        """Return what happened before the bounds; beyond one, that it was reached."""
        happened: list[Happening] = []
        for happening in self._reader.poll(timeout_s):
            source = happening.source
            if isinstance(happening, PartitionRevoked):
                self._ended.discard(source)
            reached = (
                isinstance(happening, Record | AtEnd) and happening.offset >= self._stops[source]
            )
            if not reached:
                happened.append(happening)
            elif source not in self._ended:
                self._ended.add(source)
                self._reader.pause([source])
                happened.append(AtEnd(source, self._stops[source]))
        return happened

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets on."""
        again = self._ended & offsets.keys()
        self._ended -= again
        self._reader.resume(again)
        self._reader.start(offsets)

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing of these until `resume`."""
        self._reader.pause(sources)

    def resume(self, sources: Iterable[Source]) -> None:
        """Take `pause` back."""
        self._reader.resume([source for source in sources if source not in self._ended])

    def held(self, source: Source) -> tuple[int, int]:
        """Return the first offset the source still holds, and its bound."""
        return self._reader.held(source)[0], self._stops[source]

    def topic_id(self, topic: str) -> str:
        """Return the identity of the topic."""
        return self._reader.topic_id(topic)

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Tell nobody: history read again is no progress."""

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


def offsets_at(settings: KafkaSettings, topic: str, at_ms: int) -> dict[Source, int]:
    """Return, of each partition, the first offset that was appended at that time or later.

    The end of what is committed now, where nothing was. Raises KafkaUnreachable, MissingTopic.
    """
    count = check_co_partitioned(settings, [topic])
    partitions = [TopicPartition(topic, partition) for partition in range(count)]
    admin = AdminClient(settings.connection())

    def ask(spec: OffsetSpec) -> dict[int, int]:
        with translated(f"asking for offsets of {topic} by time", settings.bootstrap):
            asked = admin.list_offsets(
                dict.fromkeys(partitions, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=settings.connect_timeout_s,
            )
            return {each.partition: future.result().offset for each, future in asked.items()}

    ends = ask(OffsetSpec.latest())  # type: ignore[no-untyped-call]
    found = ask(OffsetSpec.for_timestamp(at_ms))
    return {
        # not into a transaction that is still open: nobody reads on there before it ends
        Source(topic, partition): end if found[partition] < 0 else min(end, found[partition])
        for partition, end in ends.items()
    }


def read_all(settings: KafkaSettings, topic: str) -> Iterator[Record]:
    """Yield every committed record of a topic, from its beginning to its present end.

    In order within a partition. Raises KafkaUnreachable, MissingTopic.
    """
    reader = KafkaReader(settings, None, [topic])
    try:
        sources = [h.source for h in reader.poll(0.0) if isinstance(h, PartitionAssigned)]
        held = {source: reader.held(source) for source in sources}
        reading = {source for source, (first, end) in held.items() if first < end}
        reader.start({source: held[source][0] for source in reading})
        while reading:
            for happening in reader.poll(settings.connect_timeout_s):
                if isinstance(happening, Record):
                    if happening.offset < held[happening.source][1]:
                        yield happening
                    else:
                        reading.discard(happening.source)
                elif isinstance(happening, AtEnd):
                    reading.discard(happening.source)
    finally:
        reader.close()
