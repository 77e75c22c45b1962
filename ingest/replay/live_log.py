"""A log whose events happen now, so that it can be live traffic.

A joiner refuses events that are older than what it has joined, and the checks of a promotion cover
what was served since it began. The events of an old log therefore get the times at which they are
sent. Between two events, the time of the log passes `speed` times as fast, also between an
impression and its click.

A log can be sent several times. Its ids get a suffix for each pass, because a joiner takes an event
with a known id for a duplicate.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headrace.ingest.events.contract import IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.logs.ndjson import EventLog, Line
from headrace.runtime.clock import wall_ms
from headrace.runtime.undecodable import UNDECODABLE


class LivePace(NamedTuple):
    """The pace of a log that is live traffic."""

    speed: float
    """Multiple of the log's own pace."""
    repeat: bool = False
    """Begin again at the end of the log, without an end."""


class LiveLog:
    """An `EventLog` with times of now. It is replayed at speed 1."""

    def __init__(
        self,
        log: EventLog,
        pace: LivePace,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Read nothing yet."""
        self._log, self._now_ms = log, now_ms
        self._speed, self._repeat = pace

    @property
    def path(self) -> Path:
        """The file or directory."""
        return self._log.path

    @property
    def bytes_total(self) -> int:
        """Size of the files on disk."""
        return self._log.bytes_total

    def bytes_read(self) -> int:
        """Return the bytes read so far in this pass."""
        return self._log.bytes_read()

    def lines(self) -> Iterator[Line]:
        """Yield the events. Their times begin at the first call of `next`."""
        reached_ms = 0
        while True:
            before_ms = reached_ms
            for line in self._one_pass(reached_ms):
                reached_ms = line.time_ms
                yield line
            if not self._repeat or reached_ms == before_ms:
                return

    def _one_pass(self, reached_ms: int) -> Iterator[Line]:
        began_ms, first_ms = max(self._now_ms(), reached_ms + 1), 0
        suffix = f"~{began_ms:x}"
        for line in self._log.lines():
            first_ms = first_ms or line.time_ms
            passed_ms = int((line.time_ms - first_ms) / self._speed) if line.time_ms else 0
            yield _moved(line, began_ms + passed_ms, suffix)


def _moved(line: Line, time_ms: int, suffix: str) -> Line:
    """Return a line with another time and other ids; malformed text stays as it is."""
    value = line.value
    event = _decoded(value)
    if event is not None and isinstance(event.get(TIME), int | float):
        event[TIME] = time_ms
        for name in (IMPRESSION_ID, REQUEST_ID):
            if event.get(name) is not None:
                event[name] = f"{event[name]}{suffix}"
        value = msgspec.json.encode(event)
    ending = suffix.encode()
    return Line(
        time_ms,
        line.is_click,
        None if line.key is None else line.key + ending,
        value,
        None if line.request is None else line.request + ending,
    )


def _decoded(value: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(value)
    except UNDECODABLE:
        return None
    return event if isinstance(event, dict) else None
