"""Reads single messages again, by offset, while the reader of a group reads on.

A seek of the group's reader would drop what it has fetched. So the fetcher has a reader of its own,
without a group, which it opens when the first message is wanted. That reader is paused in between.
"""

from collections.abc import Callable

from headrace.ingest.errors import OffsetGone
from headrace.ingest.kafka.protocols import Reader, Record, Source


class RecordFetcher:
    """Fetches one message at a time. Not safe for use from several threads."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        """open_reader: returns a reader that has every partition, of committed messages."""
        self._open = open_reader
        self._reader: Reader | None = None
        self._wanted: tuple[Source, int] | None = None

    def fetch(self, source: Source, offset: int) -> Record | None:
        """Return a message; None while it is under way. Call it again with the same place.

        Raises OffsetGone if Kafka no longer has the message, KafkaUnreachable.
        """
        reader = self._reader
        if reader is None:
            self._reader = reader = self._open()
            reader.poll(0.0)  # its partitions are assigned with the first poll
        if self._wanted != (source, offset):
            self._stop(reader)
            if offset < (first := reader.bounds(source)[0]):
                raise _gone(source, offset, f"a topic that begins at {first}")
            reader.resume([source])
            reader.start({source: offset})
            self._wanted = source, offset
        for event in reader.poll(0.0):
            if isinstance(event, Record) and event.source == source and event.offset >= offset:
                self._stop(reader)
                if event.offset > offset:
                    raise _gone(source, offset, f"{event.offset} as the next offset")
                return event
        return None

    def _stop(self, reader: Reader) -> None:
        if self._wanted is not None:
            reader.pause([self._wanted[0]])
            self._wanted = None

    def close(self) -> None:
        """Disconnect."""
        if self._reader is not None:
            self._reader.close()


def _gone(source: Source, offset: int, found: str) -> OffsetGone:
    return OffsetGone(
        f"{source.topic}/{source.partition}: expected the message at offset {offset}, got {found}: "
        "Kafka deleted it"
    )
