"""Reads events from NDJSON files, line by line in order of time, ready to send.

A log is a directory with `impressions.ndjson` and `clicks.ndjson`, plain or with `.zst`, each in
order of time. The two are merged by event time, so a week need not fit in memory. Lines are sent
unchanged: only `impression_id` and `request_id` (the key, `ingest.replay.request_keys`) and
`timestamp_ms` (the order) are read. A line without them is sent too, to a random partition, and
becomes a dead letter.

Tables of other shapes are logs too: see `table_log`.
"""

import heapq
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec

from headrace.ingest.errors import StreamError
from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS, request_key
from headrace.ingest.logs.byte_streams import CODECS, opened_text
from headrace.ingest.logs.layout import SUFFIXES
from headrace.runtime.clock import wall_ms
from headrace.runtime.undecodable import UNDECODABLE

IMPRESSIONS, CLICKS = "impressions", "clicks"


class NoEventsError(StreamError):
    """A directory has no files of events."""


class Line(NamedTuple):
    """One message to send."""

    time_ms: int
    """Event time; never less than that of the line before. 0 before the first valid time."""
    is_click: bool
    key: bytes | None
    """The impression id; None where the line has none."""
    value: bytes
    request: bytes | None = None
    """The request id; None where the line has none."""


class EventLog(Protocol):
    """Events on disk."""

    @property
    def path(self) -> Path:
        """The file or directory."""

    @property
    def bytes_total(self) -> int:
        """Size of the files on disk."""

    def bytes_read(self) -> int:
        """Return the bytes read so far."""

    def lines(self) -> Iterator[Line]:
        """Yield the events in order of time; every call yields the same ones in the same order."""


class _LineHead(msgspec.Struct):
    """The part of a line that is read."""

    timestamp_ms: int | float
    impression_id: str | None = None
    request_id: Any = None


class _TimeOfEvent(msgspec.Struct):
    timestamp_ms: int | float


_time_of = msgspec.json.Decoder(_TimeOfEvent).decode


def event_time_ms(event: bytes) -> int | None:
    """Return the time of an event; None if it is unreadable."""
    try:
        return int(_time_of(event).timestamp_ms)
    except (*UNDECODABLE, ValueError, OverflowError):
        return None


class DirectoryLog:
    """A directory of impressions and clicks. Raises NoEventsError."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self._paths = [path_of(directory, stem) for stem in (IMPRESSIONS, CLICKS)]
        self._files: list[BinaryIO] = []
        self._bytes_before = 0

    @property
    def bytes_total(self) -> int:
        """Size of the files on disk."""
        return sum(path.stat().st_size for path in self._paths)

    def bytes_read(self) -> int:
        """Return the bytes read so far."""
        return self._bytes_before + sum(file.tell() for file in self._files)

    def lines(self) -> Iterator[Line]:
        """Yield the lines of both files in order of time."""
        self._bytes_before = 0
        self._files = [path.open("rb") for path in self._paths]
        try:
            streams = [
                lines_of(opened_text(file, path), is_click)
                for file, path, is_click in zip(
                    self._files, self._paths, (False, True), strict=True
                )
            ]
            # an impression precedes a click of the same time: merge keeps the order of streams
            yield from heapq.merge(*streams, key=itemgetter(0))
        finally:
            self._bytes_before = sum(file.tell() for file in self._files)
            for file in self._files:
                file.close()
            self._files = []


def lines_of(text: BinaryIO, is_click: bool) -> Iterator[Line]:
    """Yield the lines of one file with keys and times; times never decrease.

    A time that the joiner will refuse (in seconds, in microseconds, of the year 3000) is not taken.
    One such line would otherwise be the time of all lines after it.
    """
    decode = msgspec.json.Decoder(_LineHead).decode
    time_ms, latest_ms = 0, wall_ms() + AHEAD_MS
    for line in text:
        value = line.rstrip(b"\r\n")
        if not value:
            continue
        key = request = None
        try:
            head = decode(value)
        except UNDECODABLE:
            pass  # sent anyway: the joiner writes it to the dead letters with the reason
        else:
            if EARLIEST_MS <= head.timestamp_ms <= latest_ms:
                time_ms = max(time_ms, int(head.timestamp_ms))
            key = head.impression_id.encode() if head.impression_id else None
            request = request_key(head.request_id)
        yield Line(time_ms, is_click, key, value, request)


def _is_table(path: Path) -> bool:
    name = path.with_suffix("") if path.suffix.lower() in CODECS else path
    return name.suffix.lower() in SUFFIXES and name.stem not in (IMPRESSIONS, CLICKS)


def path_of(directory: Path, stem: str) -> Path:
    """Return the file of impressions or clicks in a directory. Raises NoEventsError."""
    for path in (directory / f"{stem}.ndjson.zst", directory / f"{stem}.ndjson"):
        if path.is_file():
            return path
    if not directory.exists():
        raise NoEventsError(f"expected a log at {directory}, got neither a file nor a directory")
    expected = f"expected {stem}.ndjson or {stem}.ndjson.zst in {directory}"
    tables = sorted(each.name for each in directory.iterdir() if _is_table(each))
    if not tables:
        raise NoEventsError(f"{expected}, got neither")
    raise NoEventsError(
        f"{expected}, got {', '.join(tables[:4])}. Name one file instead of the directory. Clicks "
        "in a file of their own must be joined to the impressions before (docs/guides/own_data.md)"
    )
