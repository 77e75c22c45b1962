"""Opens a log of events, whatever its form, and sorts it by event time."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import DirectoryLog, EventLog, Line, event_time_ms
from headrace.ingest.logs.table_log import TableLog
from headrace.runtime.clock import wall_ms

_MEMORY_KIB = 256 << 10
"""For sorting. A larger log is sorted in a temporary file."""


def open_log(path: Path, layout: LogLayout | None = None, *, sort: bool = False) -> EventLog:
    """Return the log at `path`: a directory of NDJSON, or with a layout a file.

    sort: by event time. Raises NoEventsError, SpecError.
    """
    log = DirectoryLog(path) if layout is None else TableLog(path, layout)
    return SortedLog(log) if sort else log


class SortedLog:
    """A log whose lines come in the order of their own times. An impression precedes its click."""

    def __init__(self, log: EventLog, memory_kib: int = _MEMORY_KIB) -> None:
        """memory_kib: for sorting."""
        self._log, self._memory_kib = log, memory_kib

    @property
    def path(self) -> Path:
        """The file or directory."""
        return self._log.path

    @property
    def bytes_total(self) -> int:
        """Size of the files on disk."""
        return self._log.bytes_total

    def bytes_read(self) -> int:
        """Return the bytes read so far."""
        return self._log.bytes_read()

    def lines(self) -> Iterator[Line]:
        """Yield the events in order of time. A line without a valid time follows its predecessor.

        All lines are read before the first one is yielded.
        """
        # "": a temporary database, which SQLite writes to disk if it exceeds its memory
        with closing(sqlite3.connect("", check_same_thread=False)) as found:
            found.execute(f"PRAGMA cache_size = -{self._memory_kib}")
            found.execute("CREATE TABLE line (time_ms, is_click, key, value, request)")
            found.executemany("INSERT INTO line VALUES (?, ?, ?, ?, ?)", self._timed())
            rows = found.execute("SELECT * FROM line ORDER BY time_ms, is_click, rowid")
            for time_ms, is_click, key, value, request in rows:
                yield Line(time_ms, bool(is_click), key, value, request)

    def _timed(self) -> Iterator[Line]:
        """Yield the lines with their own times."""
        time_ms, latest_ms = 0, wall_ms() + AHEAD_MS
        for line in self._log.lines():
            own_ms = event_time_ms(line.value)
            if own_ms is not None and EARLIEST_MS <= own_ms <= latest_ms:
                time_ms = own_ms
            yield line._replace(time_ms=time_ms)
