"""Opens a log of events, whatever its form."""

from pathlib import Path

from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import DirectoryLog, EventLog
from headrace.ingest.logs.sorted_log import SortedLog
from headrace.ingest.logs.table_log import TableLog


def open_log(path: Path, layout: LogLayout | None = None, *, sort: bool = False) -> EventLog:
    """Return the log at `path`: a directory of NDJSON, or with a layout a file.

    sort: by event time. Raises NoEventsError, SpecError.
    """
    log = DirectoryLog(path) if layout is None else TableLog(path, layout)
    return SortedLog(log) if sort else log
