"""Reads CSV, Parquet and NDJSON files in blocks of columns, some thousand rows at a time.

CSV is text throughout, because the first rows of a file do not determine the types of the others.
A line that is not a row (too few or too many columns, not a JSON object) is passed on unchanged,
before the rows after it. Messages name the line of the file, and in Parquet, which has no lines,
the row. A file may be larger than memory. An empty text is absent in
every format, since CSV has no other way to write it.

Events are flat, but logs often are not: the object `user` with the key `id` becomes the column
`user.id`. Arrays stay arrays, since a bag reads them. An array of objects stays as it is, and its
rows are refused.
"""

from __future__ import annotations

import atexit
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from headrace.ingest.features.cells.values import array_of, plain, values_of, without_empty
from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.byte_streams import BYTE_ORDER_MARK, CODECS, refusal_of, unpacked
from headrace.ingest.logs.decimal_commas import with_points
from headrace.ingest.logs.line_numbers import CsvLines, after_skipped
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.ingest.logs.layout import FileLayout

_ROWS_A_BLOCK = 16_384
_FIRST_ROWS = 50_000
_BYTES_A_BLOCK = 4 << 20
_ODD_ROWS = 1_000
"""Rows of another width at the beginning of a file, after which it is refused."""
_COLUMN_NUMBER = re.compile(r"column #(\d+)")
"""From 0, in Arrow's messages."""
_NO_NUMBER = (b"NaN", b"Infinity")
"""Numbers of Python's writer that JSON lacks; absent, as in Parquet."""


_handlers: WeakSet[Callable[[Any], str]] = WeakSet()
"""Handlers of odd rows that readers of Arrow hold."""
_RELEASE_S = 5.0


@atexit.register
def handlers_released() -> bool:
    """Wait until Arrow holds no handler; return whether it did within five seconds.

    A thread of Arrow that releases a Python object while the interpreter ends aborts the process.
    """
    deadline_s = time.monotonic() + _RELEASE_S
    while _handlers and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return not _handlers


class UnreadableRow(NamedTuple):
    """A line that is not a row. In CSV, a value with line breaks makes it several lines."""

    text: bytes
    place: Callable[[], int]
    """Returns the line in the file where it begins, from 1."""
    cause: str = ""
    """Why a line of a CSV is no row; empty for NDJSON."""

    @property
    def line(self) -> int:
        """The line in the file where it begins, from 1."""
        return self.place()


class TableBlock(NamedTuple):
    """Some rows of a file as columns."""

    first: int
    """Number of the first row, from 0."""
    rows: int
    arrow: dict[str, pa.Array]
    """The chosen columns. Values of several types in one column of NDJSON are texts."""
    line_of: Callable[[int], int] | None = None
    """Returns the line in the file of a row of the block; None: the file has no lines."""
    timed_as: npt.NDArray[np.int64] | None = None
    """Numbers of the rows from which a log without times makes the time of each row, (rows,); None:
    of the rows themselves."""

    def place(self, row: int) -> str:
        """Return the name of a row of the block, from 0: its line in the file, from 1."""
        return (
            f"row {self.first + row + 1}" if self.line_of is None else f"line {self.line_of(row)}"
        )


class RepeatedNames(SpecError):
    """Two columns of a CSV have the same name."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


class TableFile:
    """One file, read from its beginning by `blocks`."""

    def __init__(
        self,
        path: Path,
        kind: str,
        layout: FileLayout,
        choose: Callable[[list[str]], list[str]] = lambda there: there,
        *,
        flatten: bool = True,
    ) -> None:
        """choose: returns the columns to read among those of the file.

        flatten: make columns of the objects in NDJSON.
        """
        self.path, self._flatten = path, flatten
        self._kind, self._layout, self._choose = kind, layout, choose
        self.bytes_read = 0
        """Of the file on disk; for Parquet in proportion to its rows."""

    def blocks(self) -> Iterator[TableBlock | UnreadableRow]:
        """Yield blocks of rows, and lines that are not rows. Raises SpecError."""
        try:
            if self._kind == "parquet":
                yield from self._parquet()
                return
            with pa.OSFile(str(self.path)) as file:
                read = self._csv if self._kind == "csv" else self._ndjson
                for block in read(unpacked(file, self.path)):
                    if not file.closed:  # Arrow closes a file that it has read to the end
                        self.bytes_read = file.tell()
                    yield block
            self.bytes_read = self.path.stat().st_size
        except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
            raise refusal_of(self.path, error, self._kind, self._place_of(error)) from error

    def _place_of(self, error: Exception) -> str:
        """Return the column that Arrow's message numbers, as the end of a phrase."""
        found = _COLUMN_NUMBER.search(str(error))
        names = self._layout.columns
        if isinstance(error, UnicodeDecodeError):
            return " in its first line"
        if not names and self.path.suffix.lower() not in CODECS:
            with self.path.open("rb") as file:
                header = file.readline(_BYTES_A_BLOCK).decode("utf-8", "replace").strip()
            names = header.split(self._layout.delimiter)
        known = found is not None and int(found[1]) < len(names)
        return f" in the column {names[int(found[1])]!r}" if found and known else ""

    def _parquet(self) -> Iterator[TableBlock]:
        size, done = self.path.stat().st_size, 0
        with pa.parquet.ParquetFile(self.path, page_checksum_verification=True) as table:
            names = _flat(table.schema_arrow.empty_table()).column_names
            wanted = self._choose(list(dict.fromkeys(names)))
            for batch in table.iter_batches(_ROWS_A_BLOCK, columns=wanted):
                part = _flat(pa.Table.from_batches([batch]))
                found = dict(zip(part.column_names, part.columns, strict=True))
                columns = {name: plain(found[name].combine_chunks()) for name in wanted}
                yield self._block(done, batch.num_rows, columns)
                done += batch.num_rows
                self.bytes_read = size * done // max(table.metadata.num_rows, 1)
        self.bytes_read = size

    def _csv(self, stream: pa.NativeFile) -> Iterator[TableBlock | UnreadableRow]:
        if self.path.stat().st_size == 0:
            return
        # opened now: a downloaded file may be gone when a message names one of its lines
        text = unpacked(pa.OSFile(str(self.path)), self.path)
        lines = CsvLines(text, self._layout.delimiter, _BYTES_A_BLOCK)
        try:
            yield from self._csv_rows(stream, lines)
        except pa.ArrowInvalid:
            self._refuse_unclosed(lines)
            raise

    def _csv_rows(
        self, stream: pa.NativeFile, lines: CsvLines
    ) -> Iterator[TableBlock | UnreadableRow]:
        odd: list[UnreadableRow] = []
        widths: list[tuple[int, int]] = []
        skipped: list[int] = []

        def note(row: Any) -> str:
            cause = f"expected {counted(row.expected_columns, 'column')}, as {self._naming}, got "
            cause += str(row.actual_columns)
            odd.append(UnreadableRow(row.text.encode(), partial(lines.line_of, row.number), cause))
            widths.append((row.expected_columns, row.actual_columns))
            skipped.append(row.number)
            return "skip"

        _handlers.add(note)
        with _no_traceback():
            reader = _parsed(stream, self._layout, note)
        del note
        # blanks and line breaks in a cell of the header are its format, and the index of a data
        # frame has no name
        names = [
            " ".join(name.split()) or f"column_{number}"
            for number, name in enumerate(reader.schema.names, 1)
        ]
        self._refuse_repeated(names)
        wanted = [(name, names.index(name)) for name in self._choose(names)]
        done, number, last = 0, 1 if self._layout.columns else 2, b""
        for batch in _batches(reader):
            last = _last_texts(batch, odd)
            if not done and not batch.num_rows and len(odd) < _ODD_ROWS:
                continue
            self._refuse_width(widths, done + batch.num_rows)
            yield from odd
            odd.clear()
            widths.clear()
            for start in range(0, batch.num_rows, _ROWS_A_BLOCK):
                part = batch.slice(start, _ROWS_A_BLOCK)
                between = tuple(skipped)
                columns = {
                    name: pc.utf8_trim_whitespace(part.column(place)) for name, place in wanted
                }
                lines_of = _lines_of(number, between, lines)
                yield self._block(done, part.num_rows, columns, lines_of)
                done += part.num_rows
                number = after_skipped(number, part.num_rows - 1, between) + 1
            skipped = [each for each in skipped if each >= number]
        if b"\n" in last:  # a value that does not end takes all lines after it
            self._refuse_unclosed(lines)
        self._refuse_width(widths, done)
        yield from odd

    def _refuse_unclosed(self, lines: CsvLines) -> None:
        """Raise SpecError if the file has a quoted value without an end."""
        if line := lines.unclosed():
            raise SpecError(
                f"{self.path}: expected a quote at the end of the value that begins with one in "
                f"line {line}, got none in {_BYTES_A_BLOCK >> 20} MiB or to the "
                "end of the file: add it, or double the quotes inside of values"
            )

    def _block(
        self,
        first: int,
        rows: int,
        columns: dict[str, pa.Array],
        line_of: Callable[[int], int] | None = None,
    ) -> TableBlock:
        for name in set(self._layout.decimal_commas) & set(columns):
            columns[name] = with_points(columns[name])
        filled = {name: without_empty(column) for name, column in columns.items()}
        return TableBlock(first, rows, filled, line_of)

    def _refuse_width(self, widths: list[tuple[int, int]], rows: int) -> None:
        """Raise SpecError if no row so far has as many columns as there are names."""
        if rows or not widths:
            return
        named, found = widths[0]
        raise SpecError(
            f"{self.path}: expected {counted(named, 'column')} in each line, as {self._naming}, "
            f"got {found} in the first {counted(len(widths), 'line')}"
        )

    @property
    def _naming(self) -> str:
        """The origin of the names of the columns of a CSV, as the end of a phrase."""
        return "the layout names in [file] columns" if self._layout.columns else "the header names"

    def _refuse_repeated(self, names: list[str]) -> None:
        repeated = sorted({each for each in names if names.count(each) > 1})
        if repeated:
            raise RepeatedNames(
                f"{self.path}: expected a different name for each column, got {repeated[0]!r} "
                f"{names.count(repeated[0])} times: rename one in the header, or name all columns "
                "in the layout, [file] columns",
                names,
            )

    def _ndjson(self, stream: pa.NativeFile) -> Iterator[TableBlock | UnreadableRow]:
        rows: list[dict[str, Any]] = []
        lines: list[int] = []
        done = 0
        for number, line in _text_lines(stream):
            row = _object_in(line)
            if row is None and not done and not rows:
                self._refuse_json_over_lines(line)
            if row is not None:
                rows.append(row)
                lines.append(number)
            if rows and (len(rows) == _ROWS_A_BLOCK or row is None):
                yield from self._blocks_of(rows, done, lines)
                done, rows, lines = done + len(rows), [], []
            if row is None:
                yield UnreadableRow(line, partial(int, number))
        yield from self._blocks_of(rows, done, lines)

    def _refuse_json_over_lines(self, line: bytes) -> None:
        """Raise SpecError if the first line begins an array, or an object of several lines."""
        text = line.strip()
        if text == b"{" or text.startswith(b"["):
            found = "an array" if text.startswith(b"[") else "an object over several lines"
            flag = "'.[]' " if text.startswith(b"[") else ". "
            raise SpecError(
                f"{self.path}: expected one JSON object in each line (NDJSON), got {found}: "
                f"convert it, as with jq -c {flag}{self.path.name} > log.ndjson"
            )

    def _blocks_of(
        self, rows: list[dict[str, Any]], first: int, lines: Sequence[int]
    ) -> Iterator[TableBlock]:
        """Yield one block, or several if a column has lists in some rows and values in others.

        A column of Arrow has one or the other, and in an id a list of one is not its item.
        """
        rows = [_flat_row(row) for row in rows] if self._flatten else rows
        there = list(dict.fromkeys(name for row in rows for name in row))
        # a column that this block lacks is absent, not a mistake in the layout
        columns = {name: [row.get(name) for row in rows] for name in self._choose(there)}
        cuts = sorted({cut for values in columns.values() for cut in _changes(values)})
        for start, end in pairwise([0, *cuts, len(rows)] if rows else []):
            part = {name: array_of(columns[name][start:end]) for name in columns}
            yield self._block(first + start, end - start, part, lines[start:end].__getitem__)


def _parsed(
    stream: pa.NativeFile, layout: FileLayout, note: Callable[[Any], str]
) -> pa.csv.CSVStreamingReader:
    """Return the reader of a CSV. note: is called for each row of another width."""
    return pa.csv.open_csv(
        stream,
        pa.csv.ReadOptions(
            use_threads=False, block_size=_BYTES_A_BLOCK, column_names=layout.columns or None
        ),
        pa.csv.ParseOptions(
            delimiter=layout.delimiter, newlines_in_values=True, invalid_row_handler=note
        ),
        pa.csv.ConvertOptions(
            strings_can_be_null=True, null_values=[""], default_column_type=pa.string()
        ),
    )


def _batches(reader: pa.csv.CSVStreamingReader) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            with _no_traceback():
                batch = reader.read_next_batch()
        except StopIteration:
            return
        yield batch


@contextmanager
def _no_traceback() -> Iterator[None]:
    """Suppress Arrow's traceback of a row of another width that is not UTF-8; it raises as well."""
    hook = sys.unraisablehook

    def quiet(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, UnicodeDecodeError):
            hook(unraisable)

    sys.unraisablehook = quiet
    try:
        yield
    finally:
        sys.unraisablehook = hook


def _last_texts(batch: pa.RecordBatch, odd: Sequence[UnreadableRow]) -> bytes:
    """Return the texts of which one is at the end of a batch, with the rows of another width."""
    value = batch.columns[-1][-1].as_py() if batch.num_rows else None
    return (value or "").encode() + (odd[-1].text if odd else b"")


def _lines_of(first: int, skipped: Sequence[int], lines: CsvLines) -> Callable[[int], int]:
    """Return the function from a row of a block to its line. first: as the parser counts."""
    return lambda row: lines.line_of(after_skipped(first, row, skipped))


def _changes(values: Sequence[Any]) -> Iterator[int]:
    """Yield the places where lists follow other values, or other values lists."""
    known = ((place, type(each) is list) for place, each in enumerate(values) if each is not None)
    for (_, before), (place, listed) in pairwise(known):
        if listed is not before:
            yield place


def _object_in(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line, None without one."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        if not any(each in line for each in _NO_NUMBER):
            return None
        try:
            row = json.loads(line, parse_constant=lambda _: None)
        except ValueError:
            return None
    return row if isinstance(row, dict) else None


def _text_lines(stream: pa.NativeFile) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty with their numbers, from 1."""
    rest, first = b"", 1
    while read := stream.read(_BYTES_A_BLOCK):
        if first == 1 and not rest:
            read = read.removeprefix(BYTE_ORDER_MARK)
        *lines, rest = (rest + read).split(b"\n")
        for number, line in enumerate(lines, first):
            if text := line.rstrip(b"\r"):
                yield number, text
        first += len(lines)
    if rest.strip():
        yield first, rest


def _flat_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without objects in it."""
    if not any(type(value) is dict for value in row.values()):
        return row
    return dict(_flat_pairs(row, ""))


def _flat_pairs(row: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if type(value) is dict:
            yield from _flat_pairs(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _flat(table: pa.Table) -> pa.Table:
    """Return a table without columns of objects; a null object has null in all its columns."""
    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    return table


def first_rows(path: Path, kind: str, file: FileLayout) -> dict[str, pa.Array]:
    """Return the columns of the first 50,000 rows, from which a layout is guessed.

    Raises RepeatedNames, SpecError.
    """
    parts: list[tuple[int, dict[str, pa.Array]]] = []
    for block in TableFile(path, kind, file).blocks():
        if not isinstance(block, UnreadableRow) and block.rows:
            parts.append((block.rows, block.arrow))
            if sum(rows for rows, _ in parts) >= _FIRST_ROWS:
                break
    return joined_columns(parts)


def joined_columns(parts: Sequence[tuple[int, dict[str, pa.Array]]]) -> dict[str, pa.Array]:
    """Return the columns of blocks of rows as one; a block of NDJSON may lack a column.

    Values of several types become canonical texts, and those of a bag a bag of one.
    """
    names = dict.fromkeys(name for _, part in parts for name in part)
    columns = {}
    for name in names:
        arrays = [part.get(name, pa.nulls(rows)) for rows, part in parts]
        kinds = {each.type for each in arrays if not pa.types.is_null(each.type)}
        if len(kinds) > 1:
            cells = [cell for each in arrays for cell in values_of(each).to_pylist()]
            columns[name] = array_of(cells)
        else:
            kind = next(iter(kinds), pa.null())
            columns[name] = pa.concat_arrays([each.cast(kind) for each in arrays])
    return columns
