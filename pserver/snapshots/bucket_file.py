"""The Parquet file of one bucket's rows, with columns that any tool can read.

    id           uint64, ascending and unique
    shows        uint64
    clicks       uint64
    first_seen   uint32, event time in seconds, 4294967295 if never
    last_seen    uint32, event time in seconds
    values       float32[width], weights and the optimizers' state beside them

Only rows that exist are written. Floats are kept bit for bit. Their bytes are split into streams,
because the exponents of neighbours are alike and their mantissas are not, and zstd compresses the
streams. Ids are hashes and do not compress; their order lets a reader skip to a range of them.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.rows.row_codec import FoldedRows

_ROWS_A_GROUP = 1 << 16
"""Rows read at a time: some MB, so that a load needs little more memory than one bucket's file."""
_COUNTS = ("shows", "clicks")
_PLAIN = ("id", *_COUNTS, "first_seen", "last_seen")


def schema_of(width: int) -> pa.Schema:
    """Return the columns of a file of rows of `width` floats."""
    value = pa.field("element", pa.float32(), nullable=False)
    kinds = {
        "id": pa.uint64(),
        "shows": pa.uint64(),
        "clicks": pa.uint64(),
        "first_seen": pa.uint32(),
        "last_seen": pa.uint32(),
        "values": pa.list_(value, width),
    }
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


def pack(rows: FoldedRows) -> bytes:
    """Return a file of the rows that exist, in ascending order of id."""
    rows = rows.existing()
    schema = schema_of(rows.values.shape[1])
    values = pa.FixedSizeListArray.from_arrays(
        pa.array(rows.values.reshape(-1)), type=schema.field("values").type
    )
    columns = [pa.array(column) for column in rows[:5]]
    table = pa.Table.from_arrays([*columns, values], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=_ROWS_A_GROUP,
        compression="zstd",
        use_dictionary=list(_COUNTS),
        column_encoding={"values.list.element": "BYTE_STREAM_SPLIT"},
        write_statistics=list(_PLAIN),
        store_schema=True,
    )
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(blob: bytes, width: int) -> Iterator[FoldedRows]:
    """Yield the rows of a file in chunks; the arrays are read-only.

    Raises CorruptEntry if the bytes are not a file of rows of `width` floats.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(blob))
        expected, found = schema_of(width), file.schema_arrow.remove_metadata()
        if not found.equals(expected):
            raise CorruptEntry(f"expected columns {_shown(expected)}, got {_shown(found)}")
        for group in range(file.num_row_groups):
            table = file.read_row_group(group).combine_chunks()
            values = table["values"].combine_chunks().flatten().to_numpy()
            yield FoldedRows(
                table["id"].to_numpy(),
                table["shows"].to_numpy(),
                table["clicks"].to_numpy(),
                table["first_seen"].to_numpy(),
                table["last_seen"].to_numpy(),
                values.reshape(table.num_rows, width),
            )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptEntry(f"cannot be read as Parquet: {error}") from error


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
