"""Opens a log of events, whatever its form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ingest.logs.ndjson import DirectoryLog
from headrace.ingest.logs.table_log import TableLog

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.ingest.logs.layout import LogLayout
    from headrace.ingest.logs.ndjson import EventLog


def open_log(path: Path, layout: LogLayout | None = None) -> EventLog:
    """Return the log at `path`: a directory of NDJSON, or with a layout a file.

    Raises NoEventsError, SpecError.
    """
    return DirectoryLog(path) if layout is None else TableLog(path, layout)
