"""CSV, Parquet and NDJSON, read some thousand rows at a time as columns of plain values.

CSV is text throughout: what the first rows of a file look like says nothing of the others. A line
that is no row (too many columns, no JSON object) comes as it is, before the rows behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ingest.layout import PACKED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ingest.layout import FileLayout

_ROWS_A_BLOCK = 16_384
_BYTES_A_BLOCK = 4 << 20
_CODECS = {".zst": "zstd", ".gz": "gzip"}


class Block(NamedTuple):
    """Some rows."""

    rows: int
    columns: dict[str, list[Any]]
    """Of the columns wanted: a value a row, None where there is none."""


class TableFile:
    """One file, read from its beginning by `blocks`."""

    def __init__(
        self,
        path: Path,
        kind: str,
        layout: FileLayout,
        choose: Callable[[list[str]], list[str]],
    ) -> None:
        """`choose` returns the columns wanted of those there are."""
        self.path = path
        self._kind, self._layout, self._choose = kind, layout, choose
        self.bytes_read = 0
        """Of the file as it lies on disk; of Parquet in proportion to its rows."""

    def blocks(self) -> Iterator[Block | bytes]:
        """Yield rows, and lines that are none."""
        if self._kind == "parquet":
            yield from self._parquet()
            return
        with self.path.open("rb") as file:
            read = self._csv if self._kind == "csv" else self._ndjson
            for block in read(self._unpacked(file)):
                if not file.closed:  # Arrow closes what it has read to the end
                    self.bytes_read = file.tell()
                yield block
        self.bytes_read = self.path.stat().st_size

    def _unpacked(self, file: BinaryIO) -> pa.NativeFile:
        plain = pa.PythonFile(file, mode="r")
        if self.path.suffix not in PACKED:
            return plain
        return pa.CompressedInputStream(plain, _CODECS[self.path.suffix])

    def _parquet(self) -> Iterator[Block]:
        size, done = self.path.stat().st_size, 0
        with pa.parquet.ParquetFile(self.path) as table:
            wanted = self._choose(table.schema_arrow.names)
            for batch in table.iter_batches(_ROWS_A_BLOCK, columns=wanted):
                yield Block(batch.num_rows, batch.to_pydict())
                done += batch.num_rows
                self.bytes_read = size * done // table.metadata.num_rows
        self.bytes_read = size

    def _csv(self, stream: pa.NativeFile) -> Iterator[Block | bytes]:
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
                yield Block(part.num_rows, part.to_pydict())
        yield from odd

    def _ndjson(self, stream: pa.NativeFile) -> Iterator[Block | bytes]:
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

    def _block_of(self, rows: list[dict[str, Any]]) -> Block:
        there = list(dict.fromkeys(name for row in rows for name in row))
        # a column that no row of this block has is absent, not a mistake in the layout
        wanted = self._choose(there)
        return Block(len(rows), {name: [row.get(name) for row in rows] for name in wanted})


def _text_lines(stream: pa.NativeFile) -> Iterator[bytes]:
    rest = b""
    while read := stream.read(_BYTES_A_BLOCK):
        *lines, rest = (rest + read).split(b"\n")
        yield from filter(None, (line.rstrip(b"\r") for line in lines))
    if rest.strip():
        yield rest
