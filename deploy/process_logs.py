"""Writes the log lines of a process: readable or JSON, and an outage as one line and a count.

While a server is away, its clients repeat one message up to a hundred times a second. Warnings and
errors that differ only in their numbers therefore count as one line. The first is written at once,
and a minute later one line has the count of the others. Times have milliseconds and the offset from
UTC.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

REPEATS_S = 60.0
"""Time in which a repeated line is counted and not written."""

_CLIENT = "headrace.ingest.kafka.settings"
"""The logger that librdkafka writes to. It calls a lost connection critical,
although the process survives it."""
_NUMBERS = re.compile(r"\d+")
_MOST_KINDS = 1000
"""Most kinds of lines that are counted at the same time. Lines of further kinds are all written."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Time, level, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """Return the time with its offset from UTC."""
        return _time(record)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC).astimezone()
    return at.isoformat(timespec="milliseconds")


class _FirstLine(NamedTuple):
    """A line that may repeat. Its record is not kept: an error in it holds frames of the process,
    such as all windows of a joiner before an outage."""

    name: str
    level: int
    path: str
    line: int
    message: str


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes lines, and counts those that repeat one of the last minute."""

    def __init__(self, stream: TextIO, repeats_s: float = REPEATS_S) -> None:
        super().__init__(stream)
        self._repeats_s = repeats_s
        self._kinds: dict[tuple[str, str], tuple[_FirstLine, float, int]] = {}
        """First line of each kind, its time, and the number of repeats."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a line."""
        if record.name == _CLIENT and record.levelno > logging.WARNING:
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        if record.levelno < logging.WARNING:
            super().emit(record)
            return
        message = record.getMessage()
        kind = record.name, _NUMBERS.sub("#", message)
        known = self._kinds.get(kind)
        # a count that has begun goes on until its timer writes it, which may be late
        if known is not None and (known[2] or time.monotonic() - known[1] < self._repeats_s):
            first, since_s, count = known
            self._kinds[kind] = first, since_s, count + 1
            if not count:
                timer = threading.Timer(self._repeats_s, self._report, [kind])
                timer.daemon = True
                timer.start()
            return
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        first = _FirstLine(record.name, record.levelno, record.pathname, record.lineno, message)
        self._kinds[kind] = first, time.monotonic(), 0
        super().emit(record)

    def _report(self, kind: tuple[str, str]) -> None:
        with self.lock or threading.RLock():
            found = self._kinds.pop(kind, None)
            if found is None or not found[2]:
                return
            first, since_s, count = found
            passed_s = time.monotonic() - since_s
            message = f"{first.message} ({count} more like this in {passed_s:.0f} s)"
            super().emit(logging.LogRecord(*first._replace(message=message), (), None))


def configure_logs(level: int, *, as_json: bool) -> None:
    """Write the log lines of this process to standard error."""
    handler = CountingHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level, handlers=[handler])


def show_warnings_only() -> None:
    """Omit the INFO lines of this process, for a command whose output is for people.

    Its child processes write theirs to files. `--log-level debug` still shows all lines.
    """
    root = logging.getLogger()
    if root.level == logging.INFO:
        root.setLevel(logging.WARNING)
