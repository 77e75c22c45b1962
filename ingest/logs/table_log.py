"""Reads tables as logs of events: files of other shapes, with a layout of their columns.

Each row becomes an impression, and perhaps a click that is sent at its time. A row that cannot be
read is sent unchanged, and one whose time or label cannot be read without a time. Both become dead
letters, like any unusable event.
"""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import (
    AHEAD_MS,
    EARLIEST_MS,
    IMPRESSION_ID,
    REQUEST_ID,
    TIME,
    request_key,
)
from headrace.ingest.features.cells.labels import ClickWords, UnknownWord, clicked_in
from headrace.ingest.features.cells.lists import split
from headrace.ingest.features.cells.times import PER_MS, joined_times, milliseconds_of
from headrace.ingest.features.cells.values import texts_of, typed, values_of
from headrace.ingest.features.spec_text import SpecError, toml_text
from headrace.ingest.logs.layout import BagLayout, EventLayout, LogLayout
from headrace.ingest.logs.ndjson import Line
from headrace.ingest.logs.table_file import TableBlock, TableFile, UnreadableRow
from headrace.runtime.clock import wall_ms

Event = dict[str, Any]

_NO_TIME = pa.scalar(None, pa.int64())
_NO_REQUEST = pa.nulls(1, pa.string())
_DAY_MS = 86_400_000
_LEAST_MS = 2 * _DAY_MS
"""Times of 1970 and before, in any zone, say "never", as 0, -1 and the year 1 do."""
_NEVER_MS = 4_070_908_800_000
"""The year 2099, from which on a time says "never". Those of another unit are later than 9999."""
_YEAR_10000_MS = 253_402_300_800_000
_SKEW_MS = 60_000
"""By so much a click may precede its impression: a coarser unit, or another clock."""


class LogRows(NamedTuple):
    """The events of n rows of a table, as columns."""

    block: TableBlock
    times: pa.Array
    """Times of the impressions in milliseconds, null where unreadable."""
    clicks: pa.Array
    """Times of the clicks in milliseconds, null without a click."""
    odd: npt.NDArray[np.bool_]
    """Rows whose time of a click is unreadable, or cannot be one. Their label is unknown, so they
    are refused."""
    fields: dict[str, pa.Array]
    """By name, as values that events have."""
    ids: pa.Array | None
    """Ids of the impressions, empty if missing; None if rows number them."""


class TableLog:
    """One file with a layout. Raises SpecError if it is missing or has no known format."""

    def __init__(self, path: Path, layout: LogLayout, *, flatten: bool = True) -> None:
        """flatten: make fields of the objects in rows of NDJSON, which events cannot have."""
        self.path, self._flatten = path, flatten
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
        waiting: list[tuple[int, int, Line]] = []  # clicks whose time has not come
        time_ms = number = 0
        latest_ms = wall_ms() + AHEAD_MS
        for impression, click in self._events():
            if isinstance(impression, bytes):
                yield Line(time_ms, False, None, impression)
                continue
            if EARLIEST_MS <= (shown_ms := impression.get(TIME, 0)) <= latest_ms:
                time_ms = max(time_ms, shown_ms)  # else the joiner refuses the row
            while waiting and waiting[0][0] < time_ms:
                yield heapq.heappop(waiting)[2]
            key = impression[IMPRESSION_ID].encode()
            request = request_key(impression.get(REQUEST_ID))
            yield Line(time_ms, False, key, orjson.dumps(impression), request)
            if click is not None:
                number += 1
                clicked_ms = max(time_ms, min(click[TIME], latest_ms))
                line = Line(clicked_ms, True, key, orjson.dumps(click), request)
                heapq.heappush(waiting, (clicked_ms, number, line))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _opened(self) -> TableFile:
        file = self.layout.file
        return TableFile(self.path, self._kind, file, self._wanted, flatten=self._flatten)

    def _wanted(self, there: list[str]) -> list[str]:
        try:
            # NDJSON may lack a column in some blocks; in other formats it exists or never will
            return self.layout.columns(there, strict=self._kind != "ndjson")
        except SpecError as error:
            raise SpecError(f"{self.path}: {error}") from error

    def blocks(self) -> Iterator[TableBlock | UnreadableRow]:
        """Yield the columns that the layout names, and lines that are not rows."""
        self._file = self._opened()
        event = self.layout.event
        if event.time_columns or event.request_id is None:
            yield from self._file.blocks()
            return
        # learners score the candidates of a request together only if they share a time
        request, begun = _NO_REQUEST, 0
        for block in self._file.blocks():
            if isinstance(block, TableBlock) and event.request_id in block.arrow:
                requests = pa.concat_arrays([request, texts_of(block.arrow[event.request_id])])
                begins = ~_bools(pc.equal(requests[1:], requests[:-1]))
                places = np.arange(block.first, block.first + block.rows)
                timed_as = np.maximum.accumulate(np.where(begins, places, begun))
                request, begun = requests[-1:], int(timed_as[-1]) if block.rows else begun
                yield block._replace(timed_as=timed_as)
            else:
                yield block

    def rows_of(self, block: TableBlock) -> LogRows:
        """Return the events of a block. Raises SpecError."""
        times = self._times(block)
        clicks, odd = self._clicks(block, times)
        return LogRows(block, times, clicks, odd, self._fields(block), self._ids(block))

    def _times(self, block: TableBlock) -> pa.Array:
        event = self.layout.event
        start_ms = 0 if event.start is None else _milliseconds(event.start)
        if event.time_columns:
            column = time_cells(block, event)
            self._check_zone(column)
            times = milliseconds_of(column, event.timestamp_format, event.time_zone)
            return pc.add(times, start_ms) if start_ms else times
        places = block.timed_as
        if places is None:
            places = np.arange(block.first, block.first + block.rows)
        return pa.array((start_ms + 1000 * places / event.rows_per_s).astype(np.int64))

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

    def _clicks(self, block: TableBlock, times: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Return the times of the clicks, and which cells are odd. times: of the impressions."""
        click, event = self.layout.click, self.layout.event
        named = click and (click.timestamp or click.column)
        nothing = np.zeros(block.rows, np.bool_)
        if click is None or named not in block.arrow:
            return pa.nulls(block.rows, pa.int64()), nothing
        cells = block.arrow[str(named)]
        if click.timestamp is not None:
            return _timed_clicks(cells, event, times)
        try:
            clicked = clicked_in(cells, click.values)
        except UnknownWord as error:
            words = ClickWords()
            words.add(cells)
            raise SpecError(
                f"{self.path}, {block.place(error.row)}: {error} in the column {named!r} with the "
                f"values {words.in_words()}. Name those that mean a click in the layout: "
                f'[click] values = [{toml_text(error.word)}], or ["*"] if each text means one'
            ) from error
        return pc.if_else(pa.array(clicked), pc.add(times, click.delay_ms), _NO_TIME), nothing

    def _fields(self, block: TableBlock) -> dict[str, pa.Array]:
        numbers, found = self.layout.numbers, {}
        for name, field in self.layout.field_columns(list(block.arrow)).items():
            column = field.column if isinstance(field, BagLayout) else field
            if column not in block.arrow:
                continue
            values = values_of(block.arrow[column])
            if isinstance(field, BagLayout):
                values = split(values, field.separator)
            found[name] = typed(values) if column in numbers else values
        if (requests := self.layout.event.request_id) in block.arrow:
            found[REQUEST_ID] = texts_of(block.arrow[str(requests)])
        return found

    def _ids(self, block: TableBlock) -> pa.Array | None:
        column = self.layout.event.impression_id
        if column is None:
            return None
        return pc.fill_null(texts_of(block.arrow.get(column, pa.nulls(block.rows))), "")

    def _events(self) -> Iterator[tuple[Event, Event | None] | tuple[bytes, None]]:
        """Yield an impression and its click for each row, and the text of each other line."""
        stem, click = self.path.name.partition(".")[0], self.layout.click
        for block in self.blocks():
            if isinstance(block, UnreadableRow):
                yield block.text, None
                continue
            rows = self.rows_of(block)
            numbers = range(block.first, block.first + block.rows)
            ids = rows.ids
            if ids is None:
                ids = pa.array([f"{stem}-{i}" for i in numbers], pa.string())
            clicks = {IMPRESSION_ID: ids, TIME: rows.clicks}
            if click is not None and click.value in block.arrow:
                clicks["value"] = typed(values_of(block.arrow[str(click.value)]))
            known = pa.array(~rows.odd)  # a row without a label has no time, and becomes a letter
            times = pc.if_else(known, rows.times, _NO_TIME)
            impressions = rows.fields | {IMPRESSION_ID: ids, TIME: times}
            for shown, clicked in zip(_cells(impressions), _cells(clicks), strict=True):
                yield shown, clicked if TIME in clicked else None


def _cells(columns: dict[str, pa.Array]) -> Iterator[Event]:
    """Yield the values of each row that are there, by name."""
    names = list(columns)
    for row in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        yield {name: value for name, value in zip(names, row, strict=True) if value is not None}


def time_cells(block: TableBlock, event: EventLayout) -> pa.Array:
    """Return the cells of a block with the times of its impressions, null without such a column."""
    there = [block.arrow[name] for name in event.time_columns if name in block.arrow]
    if len(there) < max(1, len(event.time_columns)):
        return pa.nulls(block.rows)
    return joined_times(there)


def _timed_clicks(
    cells: pa.Array, event: EventLayout, shown: pa.Array
) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """Return the clicks of a column of times, and which cells are odd.

    A date is that of the day of its impression or later, not of midnight before it.
    """
    times = milliseconds_of(cells, event.timestamp_format, event.time_zone)
    given = _bools(pc.is_valid(cells))
    if pa.types.is_string(cells.type) or pa.types.is_boolean(cells.type):
        given = clicked_in(cells, ["*"])
    at = pc.fill_null(times, 0).to_numpy(zero_copy_only=False)
    read = _bools(pc.is_valid(times))
    never = read & ((at < _LEAST_MS) | ((at >= _NEVER_MS) & (at < _YEAR_10000_MS)))
    shown_ms = pc.fill_null(shown, 0).to_numpy(zero_copy_only=False)
    skew = np.where(at % _DAY_MS == 0, _DAY_MS, _SKEW_MS)
    good = read & ~never & (at >= np.maximum(EARLIEST_MS, shown_ms - skew))
    good &= at <= wall_ms() + AHEAD_MS
    # a click of a row that has no time, and is refused, would have no impression
    clicked = pa.array(
        np.maximum(at, shown_ms), pa.int64(), mask=~(good & _bools(shown.is_valid()))
    )
    return clicked, given & ~good & ~never


def _bools(column: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return found


def _milliseconds(moment: datetime) -> int:
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(known.timestamp() * 1000)
