"""Reads tables as logs of events: files of other shapes, with a layout of their columns.

Each row becomes an impression, and perhaps a click that is sent at its time. A row that cannot be
read, or whose time cannot be read, is sent unchanged and becomes a dead letter, like any unusable
event.

CSV, Parquet and NDJSON are read some thousand rows at a time, as columns of plain values. CSV is
text throughout, because the first rows of a file do not determine the types of the others. A line
that is not a row (too many columns, not a JSON object) is passed on unchanged, before the rows
after it.
"""

from __future__ import annotations

import heapq
from datetime import UTC, date, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from headrace.ingest.events import AHEAD_MS, EARLIEST_MS, IMPRESSION_ID, REQUEST_ID, TIME
from headrace.ingest.features import SpecError
from headrace.ingest.replay.layout import PACKED, BagLayout
from headrace.ingest.replay.ndjson import Line
from headrace.ingest.runtime import wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.ingest.replay.layout import FileLayout, LogLayout


_ROWS_A_BLOCK = 16_384


_BYTES_A_BLOCK = 4 << 20


_CODECS = {".zst": "zstd", ".gz": "gzip"}


class TableBlock(NamedTuple):
    """Some rows of a file."""

    rows: int
    columns: dict[str, list[Any]]
    """The chosen columns: one value a row, None if missing."""


class TableFile:
    """One file, read from its beginning by `blocks`."""

    def __init__(
        self,
        path: Path,
        kind: str,
        layout: FileLayout,
        choose: Callable[[list[str]], list[str]],
    ) -> None:
        """choose: returns the columns to read among those of the file."""
        self.path = path
        self._kind, self._layout, self._choose = kind, layout, choose
        self.bytes_read = 0
        """Of the file on disk; for Parquet in proportion to its rows."""

    def blocks(self) -> Iterator[TableBlock | bytes]:
        """Yield blocks of rows, and lines that are not rows."""
        if self._kind == "parquet":
            yield from self._parquet()
            return
        with self.path.open("rb") as file:
            read = self._csv if self._kind == "csv" else self._ndjson
            for block in read(self._unpacked(file)):
                if not file.closed:  # Arrow closes a file that it has read to the end
                    self.bytes_read = file.tell()
                yield block
        self.bytes_read = self.path.stat().st_size

    def _unpacked(self, file: BinaryIO) -> pa.NativeFile:
        plain = pa.PythonFile(file, mode="r")
        if self.path.suffix not in PACKED:
            return plain
        return pa.CompressedInputStream(plain, _CODECS[self.path.suffix])

    def _parquet(self) -> Iterator[TableBlock]:
        size, done = self.path.stat().st_size, 0
        with pa.parquet.ParquetFile(self.path) as table:
            wanted = self._choose(table.schema_arrow.names)
            for batch in table.iter_batches(_ROWS_A_BLOCK, columns=wanted):
                yield TableBlock(batch.num_rows, batch.to_pydict())
                done += batch.num_rows
                self.bytes_read = size * done // table.metadata.num_rows
        self.bytes_read = size

    def _csv(self, stream: pa.NativeFile) -> Iterator[TableBlock | bytes]:
        odd: list[bytes] = []

        def note(row: Any) -> str:
            odd.append(row.text.encode())
            return "skip"

        reader = pa.csv.open_csv(
            stream,
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=_BYTES_A_BLOCK,
                column_names=self._layout.columns or None,
            ),
            pa.csv.ParseOptions(delimiter=self._layout.delimiter, invalid_row_handler=note),
            pa.csv.ConvertOptions(
                strings_can_be_null=True, null_values=[""], default_column_type=pa.string()
            ),
        )
        wanted = self._choose(reader.schema.names)
        for batch in reader:
            yield from odd
            odd.clear()
            for start in range(0, batch.num_rows, _ROWS_A_BLOCK):
                part = batch.select(wanted).slice(start, _ROWS_A_BLOCK)
                yield TableBlock(part.num_rows, part.to_pydict())
        yield from odd

    def _ndjson(self, stream: pa.NativeFile) -> Iterator[TableBlock | bytes]:
        rows: list[dict[str, Any]] = []
        for line in _text_lines(stream):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
                if len(rows) == _ROWS_A_BLOCK:
                    yield self._block_of(rows)
                    rows = []
                continue
            if rows:
                yield self._block_of(rows)
                rows = []
            yield line
        if rows:
            yield self._block_of(rows)

    def _block_of(self, rows: list[dict[str, Any]]) -> TableBlock:
        there = list(dict.fromkeys(name for row in rows for name in row))
        # a column that this block lacks is absent, not a mistake in the layout
        wanted = self._choose(there)
        return TableBlock(len(rows), {name: [row.get(name) for row in rows] for name in wanted})


def _text_lines(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while read := stream.read(_BYTES_A_BLOCK):
        *lines, rest = (rest + read).split(b"\n")
        yield from filter(None, (line.rstrip(b"\r") for line in lines))
    if rest.strip():
        yield rest


_NOT_CLICKED = frozenset({None, 0, "0", "", "false", "False"})

Event = dict[str, Any]


class TableLog:
    """One file with a layout. Raises SpecError if it is missing or has no known format."""

    def __init__(self, path: Path, layout: LogLayout) -> None:
        self.path = path
        self._layout, self._kind = layout, layout.format_of(path)
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
            yield Line(time_ms, False, key, orjson.dumps(impression, default=_as_json))
            if click is not None:
                number += 1
                clicked_ms = max(time_ms, min(click[TIME], latest_ms))
                line = Line(clicked_ms, True, key, orjson.dumps(click))
                heapq.heappush(waiting, (clicked_ms, number, line))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _opened(self) -> TableFile:
        return TableFile(self.path, self._kind, self._layout.file, self._wanted)

    def _wanted(self, there: list[str]) -> list[str]:
        try:
            # NDJSON may lack a column in some blocks; in other formats it exists or never will
            return self._layout.columns(there, strict=self._kind != "ndjson")
        except SpecError as error:
            raise SpecError(f"{self.path}: {error}") from error

    def _rows(self) -> Iterator[bytes | tuple[Event, Event | None]]:
        first = 0
        for block in self._file.blocks():
            if isinstance(block, bytes):
                yield block
            else:
                yield from self._events(block, first)
                first += block.rows

    def _events(self, block: TableBlock, first: int) -> Iterator[tuple[Event, Event | None]]:
        fields = self._fields(block)
        ids = self._ids(block, first)
        times = self._times(block, first)
        clicks = self._clicks(block, ids, times)
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

    def _ids(self, block: TableBlock, first: int) -> list[str]:
        column = self._layout.event.impression_id
        stem = self.path.name.partition(".")[0]
        if column is None:
            return [f"{stem}-{first + i}" for i in range(block.rows)]
        # a row without an id becomes an event without one: a dead letter
        return ["" if value is None else str(value) for value in _column(block, column)]

    def _fields(self, block: TableBlock) -> dict[str, Sequence[Any]]:
        numbers = set(self._layout.file.numbers)
        fields: dict[str, Sequence[Any]] = {}
        for name, field in self._layout.field_columns(list(block.columns)).items():
            if isinstance(field, BagLayout):
                texts = _column(block, field.column)
                fields[name] = [None if t is None else str(t).split(field.separator) for t in texts]
            else:
                values = _column(block, field)
                fields[name] = [_number(v) for v in values] if field in numbers else values
        if (request := self._layout.event.request_id) is not None:
            fields[REQUEST_ID] = [None if v is None else str(v) for v in _column(block, request)]
        return fields

    def _times(self, block: TableBlock, first: int) -> list[int | None]:
        event = self._layout.event
        if event.timestamp is not None:
            return _times(_column(block, event.timestamp), event.timestamp_format)
        assert event.start is not None
        start_ms = _milliseconds(event.start)
        return [int(start_ms + 1000 * (first + i) / event.rows_per_s) for i in range(block.rows)]

    def _clicks(
        self, block: TableBlock, ids: Sequence[str], times: Sequence[int | None]
    ) -> list[Event | None]:
        click = self._layout.click
        if click is None:
            return [None] * block.rows
        when: Sequence[int | None]
        if click.timestamp is not None:
            when = _times(_column(block, click.timestamp), self._layout.event.timestamp_format)
        else:
            assert click.column is not None
            when = [
                None if value in _NOT_CLICKED or time_ms is None else time_ms + click.delay_ms
                for value, time_ms in zip(_column(block, click.column), times, strict=True)
            ]
        values = _column(block, click.value) if click.value else [None] * block.rows
        clicks: list[Event | None] = []
        for impression_id, time_ms, value in zip(ids, when, values, strict=True):
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


def _times(values: Sequence[Any], form: str) -> list[int | None]:
    if form in ("ms", "s"):
        scale = 1 if form == "ms" else 1000
        return [_time(_number(value), scale) for value in values]
    texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    parsed = pc.strptime(texts, form, "ms", error_is_null=True).cast(pa.int64())
    times: list[int | None] = parsed.to_pylist()
    return times


def _time(value: Any, scale: int) -> int | None:
    if isinstance(value, datetime):
        return _milliseconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * scale)
    return None


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
