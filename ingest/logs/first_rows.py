"""Reads the first rows of a table as columns, from which a layout is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.ingest.features.cells.values import array_of, values_of
from headrace.ingest.logs.table_file import TableFile, UnreadableRow

if TYPE_CHECKING:
    from headrace.ingest.logs.layout import FileLayout

_ROWS = 50_000


def first_rows(path: Path, kind: str, file: FileLayout) -> dict[str, pa.Array]:
    """Return the columns of the first 50,000 rows. Raises RepeatedNames, SpecError."""
    parts: list[tuple[int, dict[str, pa.Array]]] = []
    for block in TableFile(path, kind, file).blocks():
        if not isinstance(block, UnreadableRow) and block.rows:
            parts.append((block.rows, block.arrow))
            if sum(rows for rows, _ in parts) >= _ROWS:
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
