"""Reads CSV, Parquet and NDJSON files in blocks of columns, some thousand rows at a time.

CSV is text throughout, because the first rows of a file do not determine the types of the others.
A line that is not a row (too many columns, not a JSON object) is passed on unchanged, before the
rows after it. A file may be larger than memory. Objects in a row become flat columns
(`nested_columns`).
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.ingest.features import SpecError
from headrace.ingest.logs.layout import PACKED
from headrace.ingest.logs.nested_columns import flat_columns, flat_row, leaves_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.ingest.logs.layout import FileLayout

_ROWS_A_BLOCK = 16_384
_BYTES_A_BLOCK = 4 << 20
_ODD_ROWS = 1_000
"""Rows of another width at the beginning of a file, after which it is refused."""
_COLUMN_NUMBER = re.compile(r"column #(\d+)")
"""From 0, in Arrow's messages."""
_CODECS = {".zst": "zstd", ".gz": "gzip"}


class UnreadableRow(NamedTuple):
    """A line that is not a row."""

    line: int
    """In the file, from 1; 0 if unknown."""
    text: bytes


class TableBlock:
    """Some rows of a file, as Arrow columns and as lists of plain values."""

    def __init__(
        self,
        first: int,
        rows: int,
        arrow: dict[str, pa.Array] | None = None,
        plain: dict[str, list[Any]] | None = None,
    ) -> None:
        """Take the columns in one of the two forms. first: number of the first row, from 0."""
        self.first, self.rows = first, rows
        self._arrow, self._plain = arrow, plain

    @cached_property
    def columns(self) -> dict[str, list[Any]]:
        """The chosen columns: one value a row, None if missing."""
        if self._plain is not None:
            return self._plain
        assert self._arrow is not None
        return {name: column.to_pylist() for name, column in self._arrow.items()}

    @cached_property
    def arrow(self) -> dict[str, pa.Array]:
        """The same as Arrow arrays. Values of several types in one column become text."""
        if self._arrow is not None:
            return self._arrow
        assert self._plain is not None
        return {name: _array(values) for name, values in self._plain.items()}


class TableFile:
    """One file, read from its beginning by `blocks`."""

    def __init__(
        self,
        path: Path,
        kind: str,
        layout: FileLayout,
        choose: Callable[[list[str]], list[str]] = lambda there: there,
    ) -> None:
        """choose: returns the columns to read among those of the file."""
        self.path = path
        self._kind, self._layout, self._choose = kind, layout, choose
        self.bytes_read = 0
        """Of the file on disk; for Parquet in proportion to its rows."""

    def blocks(self) -> Iterator[TableBlock | UnreadableRow]:
        """Yield blocks of rows, and lines that are not rows. Raises SpecError."""
        try:
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
        except (pa.ArrowInvalid, OSError) as error:
            if "invalid UTF8" in str(error):
                raise SpecError(
                    f"{self.path}: expected UTF-8, got other bytes{self._place_of(error)}: convert "
                    "the file, as with iconv -f latin1 -t utf-8"
                ) from error
            raise SpecError(f"{self.path}: expected a {self._kind} file, got: {error}") from error

    def _place_of(self, error: Exception) -> str:
        """Return the column that Arrow's message numbers, as the end of a phrase."""
        found = _COLUMN_NUMBER.search(str(error))
        names = self._layout.columns
        if not names and self.path.suffix not in PACKED:
            with self.path.open("rb") as file:
                header = file.readline(_BYTES_A_BLOCK).decode("utf-8", "replace").strip()
            names = header.split(self._layout.delimiter)
        known = found is not None and int(found[1]) < len(names)
        return f" in the column {names[int(found[1])]!r}" if found and known else ""

    def _unpacked(self, file: BinaryIO) -> pa.NativeFile:
        plain = pa.PythonFile(file, mode="r")
        if self.path.suffix not in PACKED:
            return plain
        return pa.CompressedInputStream(plain, _CODECS[self.path.suffix])

    def _parquet(self) -> Iterator[TableBlock]:
        size, done = self.path.stat().st_size, 0
        with pa.parquet.ParquetFile(self.path) as table:
            # a nested column is read whole, even if the layout names only a part of it
            parts = {part: each.name for each in table.schema_arrow for part in leaves_of(each)}
            wanted = self._choose(list(parts))
            whole = list(dict.fromkeys(parts[name] for name in wanted))
            for batch in table.iter_batches(_ROWS_A_BLOCK, columns=whole):
                columns = flat_columns(batch)
                yield TableBlock(done, batch.num_rows, {name: columns[name] for name in wanted})
                done += batch.num_rows
                self.bytes_read = size * done // table.metadata.num_rows
        self.bytes_read = size

    def _csv(self, stream: pa.NativeFile) -> Iterator[TableBlock | UnreadableRow]:
        odd: list[UnreadableRow] = []
        widths: list[tuple[int, int]] = []

        def note(row: Any) -> str:
            odd.append(UnreadableRow(row.number or 0, row.text.encode()))
            widths.append((row.expected_columns, row.actual_columns))
            return "skip"

        if self.path.stat().st_size == 0:
            return
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
        self._refuse_repeated(reader.schema.names)
        wanted = self._choose(reader.schema.names)
        done = 0
        for batch in reader:
            if not done and not batch.num_rows and len(odd) < _ODD_ROWS:
                continue
            self._refuse_width(widths, done + batch.num_rows)
            yield from odd
            odd.clear()
            widths.clear()
            for start in range(0, batch.num_rows, _ROWS_A_BLOCK):
                part = batch.select(wanted).slice(start, _ROWS_A_BLOCK)
                yield _block(part, done)
                done += part.num_rows
        self._refuse_width(widths, done)
        yield from odd

    def _refuse_width(self, widths: list[tuple[int, int]], rows: int) -> None:
        """Raise SpecError if no row so far has as many columns as there are names."""
        if rows or not widths:
            return
        (named, found), where = widths[0], "the first line"
        if self._layout.columns:
            where = "the layout, [file] columns,"
        raise SpecError(
            f"{self.path}: expected {named} columns in each row, as {where} names, got {found} in "
            f"the first {len(widths):,} rows"
        )

    def _refuse_repeated(self, names: list[str]) -> None:
        repeated = sorted({each for each in names if names.count(each) > 1})
        if repeated:
            raise SpecError(
                f"{self.path}: expected a different name for each column, got {repeated[0]!r} "
                f"{names.count(repeated[0])} times: rename one in the header, or name all columns "
                "in the layout, [file] columns"
            )

    def _ndjson(self, stream: pa.NativeFile) -> Iterator[TableBlock | UnreadableRow]:
        rows: list[dict[str, Any]] = []
        done = number = 0
        for number, line in enumerate(_text_lines(stream), 1):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            if rows and (len(rows) == _ROWS_A_BLOCK or not isinstance(row, dict)):
                yield self._block_of(rows, done)
                done, rows = done + len(rows), []
            if not isinstance(row, dict):
                yield UnreadableRow(number, line)
        if rows:
            yield self._block_of(rows, done)

    def _block_of(self, rows: list[dict[str, Any]], first: int) -> TableBlock:
        rows = [flat_row(row) for row in rows]
        there = list(dict.fromkeys(name for row in rows for name in row))
        # a column that this block lacks is absent, not a mistake in the layout
        wanted = self._choose(there)
        plain = {name: [row.get(name) for row in rows] for name in wanted}
        return TableBlock(first, len(rows), plain=plain)


def _block(batch: pa.RecordBatch, first: int) -> TableBlock:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return TableBlock(first, batch.num_rows, columns)


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([None if each is None else _text(each) for each in values], pa.string())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _text_lines(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while read := stream.read(_BYTES_A_BLOCK):
        *lines, rest = (rest + read).split(b"\n")
        yield from filter(None, (line.rstrip(b"\r") for line in lines))
    if rest.strip():
        yield rest
