"""Makes flat columns of nested ones: the object `user` with the key `id` becomes `user.id`.

Events are flat, but logs often are not. Arrays stay arrays, since a bag reads them; an array of
objects stays as it is, and its rows are refused.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


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


def flat(table: pa.Table) -> pa.Table:
    """Return a table without columns of objects; a null object has null in all its columns."""
    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    return table
