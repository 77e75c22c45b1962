"""Makes flat columns of nested ones: the object `user` with the key `id` becomes `user.id`.

Events are flat, but logs often are not. Arrays stay arrays, since a bag reads them; an array of
objects stays as it is, and its rows are refused.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells.values import plain


def flat_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without objects in it."""
    if not any(type(value) is dict for value in row.values()):
        return row
    return dict(_pairs(row, ""))


def _pairs(row: dict[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if type(value) is dict:
            yield from _pairs(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def leaves_of(column: pa.Field) -> list[str]:
    """Return the names of the flat columns of a column."""
    if not pa.types.is_struct(column.type):
        return [column.name]
    return [f"{column.name}.{leaf}" for part in column.type.fields for leaf in leaves_of(part)]


def flat_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the flat columns of a batch, in plain types."""
    found: dict[str, pa.Array] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        found.update(_flat(name, column))
    return found


def without_empty(column: pa.Array) -> pa.Array:
    """Return the column with null in place of empty texts."""
    if not pa.types.is_string(column.type):
        return column
    empty = pc.equal(column, "")
    return (
        pc.if_else(empty, pa.scalar(None, column.type), column) if pc.any(empty).as_py() else column
    )


def _flat(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    if not pa.types.is_struct(column.type):
        yield name, plain(column)
        return
    for place, part in enumerate(column.type.fields):
        # struct_field keeps the nulls of the object itself
        yield from _flat(f"{name}.{part.name}", pc.struct_field(column, [place]))
