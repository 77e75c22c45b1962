"""Reads tables as logs of events: files of other shapes, with a layout of their columns.

Each row becomes an impression, and perhaps a click that is sent at its time. A row that cannot be
read, or whose time cannot be read, is sent unchanged and becomes a dead letter, like any unusable
event.
"""

from __future__ import annotations

import heapq
from datetime import UTC, date, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from headrace.ingest.events import (
    AHEAD_MS,
    EARLIEST_MS,
    IMPRESSION_ID,
    REQUEST_ID,
    TIME,
    request_key,
)
from headrace.ingest.features import SpecError
from headrace.ingest.logs.layout import BagLayout
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.logs.table_file import TableFile, UnreadableRow
from headrace.ingest.logs.time_columns import PER_MS, click_times, milliseconds_of
from headrace.ingest.runtime import wall_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headrace.ingest.logs.layout import LogLayout
    from headrace.ingest.logs.table_file import TableBlock

Event = dict[str, Any]


class TableLog:
    """One file with a layout. Raises SpecError if it is missing or has no known format."""

    def __init__(self, path: Path, layout: LogLayout) -> None:
        self.path = path
        self.layout, self._kind = layout, layout.format_of(path)
        if not path.is_file():
            raise SpecError(f"{path}: expected a file of events, got no such file")
        self._file = self._opened()

    @property
    def bytes_total(self) -> int:
        """Size of the file on disk."""
        return self.path.stat().st_size

    def bytes_read(self) -> int:
        """Return the bytes read so far."""
        return self._file.bytes_read

    def lines(self) -> Iterator[Line]:
        """Yield impressions and clicks in order of time."""
        self._file = self._opened()
        waiting: list[tuple[int, int, Line]] = []  # clicks whose time has not come
        time_ms = number = 0
        latest_ms = wall_ms() + AHEAD_MS
        for row in self._rows():
            if isinstance(row, bytes):
                yield Line(time_ms, False, None, row)
                continue
            impression, click = row
            if EARLIEST_MS <= (shown_ms := impression.get(TIME, 0)) <= latest_ms:
                time_ms = max(time_ms, shown_ms)  # else the joiner refuses the row
            while waiting and waiting[0][0] < time_ms:
                yield heapq.heappop(waiting)[2]
            key = impression[IMPRESSION_ID].encode()
            request = request_key(impression.get(REQUEST_ID))
            value = orjson.dumps(impression, default=_as_json)
            yield Line(time_ms, False, key, value, request)
            if click is not None:
                number += 1
                clicked_ms = max(time_ms, min(click[TIME], latest_ms))
                line = Line(clicked_ms, True, key, orjson.dumps(click), request)
                heapq.heappush(waiting, (clicked_ms, number, line))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _opened(self) -> TableFile:
        return TableFile(self.path, self._kind, self.layout.file, self._wanted)

    def _wanted(self, there: list[str]) -> list[str]:
        try:
            # NDJSON may lack a column in some blocks; in other formats it exists or never will
            return self.layout.columns(there, strict=self._kind != "ndjson")
        except SpecError as error:
            raise SpecError(f"{self.path}: {error}") from error

    def blocks(self) -> Iterator[TableBlock | UnreadableRow]:
        """Yield the columns that the layout names, and lines that are not rows."""
        self._file = self._opened()
        yield from self._file.blocks()

    def times(self, block: TableBlock) -> pa.Array:
        """Return the times of a block's impressions in milliseconds, null where unreadable."""
        event = self.layout.event
        if event.timestamp is not None:
            column = block.arrow.get(event.timestamp, pa.nulls(block.rows))
            self._check_zone(column)
            return milliseconds_of(column, event.timestamp_format, event.time_zone)
        assert event.start is not None
        start_ms = _milliseconds(event.start)
        places = range(block.first, block.first + block.rows)
        return pa.array([int(start_ms + 1000 * i / event.rows_per_s) for i in places], pa.int64())

    def _check_zone(self, times: pa.Array) -> None:
        """Raise SpecError for a time_zone that numbers would ignore.

        A column of timestamps needs no format, so the format is the default, "ms", there too.
        """
        event, kind = self.layout.event, times.type
        counted = event.timestamp_format in PER_MS and not pa.types.is_temporal(kind)
        if event.time_zone is not None and counted and not pa.types.is_null(kind):
            raise SpecError(
                f"{self.path}: expected times without a zone in the column {event.timestamp!r}, "
                f"got timestamp_format = {event.timestamp_format!r} beside time_zone = "
                f"{event.time_zone!r} in the layout, [event]: remove time_zone, since such times "
                "count from 1970 in UTC, or set the timestamp_format of the texts"
            )

    def click_times(self, block: TableBlock, times: pa.Array) -> pa.Array:
        """Return the times of a block's clicks in milliseconds, null without a click."""
        click = self.layout.click
        named = click and (click.timestamp or click.column)
        if click is None or named not in block.arrow:
            return pa.nulls(block.rows, pa.int64())
        return click_times(block.arrow, click, self.layout.event, times)

    def _rows(self) -> Iterator[bytes | tuple[Event, Event | None]]:
        for block in self._file.blocks():
            if isinstance(block, UnreadableRow):
                yield block.text
            else:
                yield from self._events(block)

    def _events(self, block: TableBlock) -> Iterator[tuple[Event, Event | None]]:
        fields = self._fields(block)
        ids = self._ids(block)
        shown_ms = self.times(block)
        times = shown_ms.to_pylist()
        clicks = self._clicks(block, ids, self.click_times(block, shown_ms).to_pylist())
        names = list(fields)
        rows = zip(*fields.values(), strict=True) if fields else repeat(())
        for row, impression_id, time_ms, click in zip(rows, ids, times, clicks, strict=False):
            impression = {
                name: value for name, value in zip(names, row, strict=True) if value is not None
            }
            impression[IMPRESSION_ID] = impression_id
            if time_ms is not None:
                impression[TIME] = time_ms
            yield impression, click

    def _ids(self, block: TableBlock) -> list[str]:
        column = self.layout.event.impression_id
        stem = self.path.name.partition(".")[0]
        if column is None:
            return [f"{stem}-{block.first + i}" for i in range(block.rows)]
        # a row without an id becomes an event without one: a dead letter
        return ["" if value is None else str(value) for value in _column(block, column)]

    def _fields(self, block: TableBlock) -> dict[str, Sequence[Any]]:
        numbers = self.layout.numbers
        fields: dict[str, Sequence[Any]] = {}
        for name, field in self.layout.field_columns(list(block.columns)).items():
            if isinstance(field, BagLayout):
                texts = _column(block, field.column)
                fields[name] = [None if t is None else str(t).split(field.separator) for t in texts]
            else:
                values = _column(block, field)
                fields[name] = [_number(v) for v in values] if field in numbers else values
        if (request := self.layout.event.request_id) is not None:
            fields[REQUEST_ID] = [None if v is None else str(v) for v in _column(block, request)]
        return fields

    def _clicks(
        self, block: TableBlock, ids: Sequence[str], times: Sequence[int | None]
    ) -> list[Event | None]:
        click = self.layout.click
        if click is None:
            return [None] * block.rows
        values = _column(block, click.value) if click.value else [None] * block.rows
        clicks: list[Event | None] = []
        for impression_id, time_ms, value in zip(ids, times, values, strict=True):
            if time_ms is None:
                clicks.append(None)
                continue
            clicks.append({IMPRESSION_ID: impression_id, TIME: time_ms})
            if value is not None:
                clicks[-1] = {**clicks[-1], "value": _number(value)}  # type: ignore[dict-item]
        return clicks


def _column(block: TableBlock, name: str) -> Sequence[Any]:
    return block.columns.get(name) or [None] * block.rows


def _number(value: Any) -> Any:
    """Return the number of a text that has one; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
    except ValueError:
        return value
    return number if abs(number) != float("inf") and number == number else value


def _milliseconds(moment: datetime) -> int:
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(known.timestamp() * 1000)


def _as_json(value: Any) -> Any:
    """Return a JSON form of a value that orjson cannot write; Parquet has many types."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)
