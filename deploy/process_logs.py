"""Writes the log lines of a process: readable or JSON, and an outage as a line a minute.

While a server is away, its clients repeat one message up to a hundred times a second. Warnings and
errors that differ only in their numbers are therefore written once a minute, with the number of
lines that were left out. Times have milliseconds and the offset from UTC.
"""

import json
import logging
import math
import re
import sys
import time
from datetime import UTC, datetime
from typing import TextIO

_REPEATS_S = 60.0
"""Time in which a repeated line is counted and not written."""

_CLIENT = "headrace.ingest.kafka.client_log"
"""The logger of the Kafka client."""
_NUMBERS = re.compile(r"\d+")
_MOST_KINDS = 1000
"""Most kinds of lines that are counted at the same time. Then all counts begin again."""


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message; process of a worker; exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if worker := _worker(record):
            line["process"] = worker
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """Time, level, process of a worker, logger and message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(worker)s%(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line without an exception."""
        worker = _worker(record)
        record.worker = f"{worker}: " if worker else ""
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        """Return the time with its offset from UTC."""
        return _time(record)


def _worker(record: logging.LogRecord) -> str:
    """Return the name of a worker's process; empty in other processes."""
    name = record.processName or ""
    return "" if name == "MainProcess" else name


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC).astimezone()
    return at.isoformat(timespec="milliseconds")


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes lines, and counts those that repeat one of the last minute."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}
        """When the last line of each kind was written, and the number of repeats since then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write or count a line."""
        if record.levelno >= logging.WARNING:
            message, now_s = record.getMessage(), time.monotonic()
            kind = record.name, _NUMBERS.sub("#", message)
            written_s, count = self._kinds.get(kind, (-math.inf, 0))
            if now_s - written_s < _REPEATS_S:
                self._kinds[kind] = written_s, count + 1
                return
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            self._kinds[kind] = now_s, 0
            if count:
                record.msg = f"{message} ({count} more like this in {now_s - written_s:.0f} s)"
                record.args = ()
        super().emit(record)


def configure_logs(level: int, *, as_json: bool) -> None:
    """Write the log lines of this process to standard error."""
    handler = CountingHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level, handlers=[handler])


def own_formatter() -> logging.Formatter | None:
    """Return the formatter of this process, for its workers."""
    return next((each.formatter for each in logging.getLogger().handlers), None)


def show_warnings_only() -> None:
    """Omit the INFO lines of this process, for a command whose output is for people.

    Also omit the lines of the Kafka client: if Kafka does not answer, the command says so. Child
    processes write theirs to files. `--log-level debug` still shows all lines.
    """
    root = logging.getLogger()
    if root.level > logging.DEBUG:
        root.setLevel(max(root.level, logging.WARNING))
        logging.getLogger(_CLIENT).setLevel(logging.CRITICAL)
