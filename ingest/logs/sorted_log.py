"""Sorts a log by event time, in runs on disk if it is larger than memory.

Lines are collected into runs of some hundred megabytes. Each run is sorted and written to a
temporary file, and the files are merged. A log that fits into one run touches no disk.
"""

import heapq
import tempfile
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS
from headrace.ingest.logs.ndjson import EventLog, Line
from headrace.ingest.runtime.clock import wall_ms
from headrace.undecodable import UNDECODABLE

_BYTES_A_RUN = 256 << 20
_LINE_BYTES = 300
"""Of a line in memory beside its value: a tuple, a key and an int."""
_LINES_A_CHUNK = 2_000

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Line]).decode


class _TimeOfLine(msgspec.Struct):
    timestamp_ms: int | float


_time_of = msgspec.json.Decoder(_TimeOfLine).decode


class SortedLog:
    """A log whose lines come in the order of their own times. An impression precedes its click."""

    def __init__(self, log: EventLog, run_bytes: int = _BYTES_A_RUN) -> None:
        """run_bytes: memory for one run."""
        self._log, self._run_bytes = log, run_bytes

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
        files: list[BinaryIO] = []
        try:
            runs = self._runs(files)
            yield from heapq.merge(*runs, key=_order)
        finally:
            for file in files:
                file.close()

    def _runs(self, files: list[BinaryIO]) -> list[Iterator[Line]]:
        run: list[Line] = []
        size, time_ms, latest_ms = 0, 0, wall_ms() + AHEAD_MS
        for line in self._log.lines():
            time_ms = _own_time(line.value, time_ms, latest_ms)
            run.append(line._replace(time_ms=time_ms))
            size += len(line.value) + _LINE_BYTES
            if size >= self._run_bytes:
                files.append(_written(run))
                run, size = [], 0
        run.sort(key=_order)
        return [*map(_read, files), iter(run)]


_order = itemgetter(0, 1)


def _own_time(value: bytes, before_ms: int, latest_ms: int) -> int:
    try:
        time_ms = _time_of(value).timestamp_ms
    except UNDECODABLE:
        return before_ms
    return int(time_ms) if EARLIEST_MS <= time_ms <= latest_ms else before_ms


def _written(run: list[Line]) -> BinaryIO:
    run.sort(key=_order)
    file = tempfile.TemporaryFile(prefix="headrace-sort-")  # noqa: SIM115  (closed by `lines`)
    for start in range(0, len(run), _LINES_A_CHUNK):
        chunk = _encode(run[start : start + _LINES_A_CHUNK])
        file.write(len(chunk).to_bytes(8, "little") + chunk)
    file.seek(0)
    return file


def _read(file: BinaryIO) -> Iterator[Line]:
    while size := file.read(8):
        yield from _decode(file.read(int.from_bytes(size, "little")))
