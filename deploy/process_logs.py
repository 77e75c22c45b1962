"""Writes the log lines of a process: readable or JSON, and an outage as one line and a count.

While a server is away, its clients repeat one message up to a hundred times a second. Warnings and
errors that differ only in their numbers therefore count as one line. The first is written at once,
and a minute later one line has the count of the others. Times have milliseconds and the offset from
UTC.

The lines of the Kafka client in the first seconds of a process are held back. If Kafka does not
answer a command, the command ends with a message of its own, which has the reason. A process that
lives longer writes them, late but with their times. *Refused:* a list of the commands to which this
applies. The client's lines are of use if a command goes on without Kafka, whatever its name.
"""

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

HELD_S = 15.0
"""Age of a process from which it writes the lines of the Kafka client. A command waits less for the
first answer of Kafka."""

_CLIENT = "headrace.ingest.kafka.client_log"
"""The logger of the Kafka client."""
_NUMBERS = re.compile(r"\d+")
_MOST_KINDS = 1000
"""Most kinds of lines that are counted at the same time. Lines of further kinds are all written."""


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


class HeldLines(logging.Filter):
    """Keeps the lines of the Kafka client from a handler until the process has lived for a while.

    If the process ends before, they are not written.
    """

    def __init__(self, handler: logging.Handler, held_s: float = HELD_S) -> None:
        super().__init__()
        self._handler = handler
        self._until_s = time.monotonic() + held_s
        self._held: list[logging.LogRecord] = []
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is written now."""
        if record.name != _CLIENT:
            return True
        with self._lock:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                return True
            if not self._held:
                timer = threading.Timer(left_s, self.write)
                timer.daemon = True
                timer.start()
            self._held.append(record)
            return False

    def write(self) -> None:
        """Write what is held, and hold nothing from now on."""
        with self._lock:
            self._until_s = 0.0
            held, self._held = self._held, []
        for record in held:
            self._handler.handle(record)


def configure_logs(level: int, *, as_json: bool) -> None:
    """Write the log lines of this process to standard error.

    For debugging, no line is held back.
    """
    handler = CountingHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    if level > logging.DEBUG:
        handler.addFilter(HeldLines(handler))
    logging.basicConfig(level=level, handlers=[handler])


def own_formatter() -> logging.Formatter | None:
    """Return the formatter of this process, for its workers."""
    return next((each.formatter for each in logging.getLogger().handlers), None)


def write_held_lines() -> None:
    """Write the lines that are held back, for a command that fails without a message."""
    for handler in logging.getLogger().handlers:
        for each in handler.filters:
            if isinstance(each, HeldLines):
                each.write()


def show_warnings_only() -> None:
    """Omit the INFO lines of this process, for a command whose output is for people.

    Its child processes write theirs to files. `--log-level debug` still shows all lines.
    """
    root = logging.getLogger()
    if root.level == logging.INFO:
        root.setLevel(logging.WARNING)
