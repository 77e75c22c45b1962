"""Reads the first rows of a table as columns, from which a layout is guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.ingest.logs.table_file import TableFile, UnreadableRow

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.ingest.logs.layout import FileLayout

_ROWS = 50_000


def first_rows(path: Path, kind: str, file: FileLayout) -> dict[str, pa.Array]:
    """Return the columns of the first 50,000 rows. Raises RepeatedNames, SpecError."""
    parts: list[dict[str, pa.Array]] = []
    rows = 0
    for block in TableFile(path, kind, file).blocks():
        if not isinstance(block, UnreadableRow) and block.rows:
            parts.append(block.arrow)
            rows += block.rows
            if rows >= _ROWS:
                break
    names = list(dict.fromkeys(name for part in parts for name in part))
    columns = {}
    for name in names:
        arrays = [part[name] for part in parts if name in part]
        kinds = {each.type for each in arrays if not pa.types.is_null(each.type)}
        kind_of = kinds.pop() if len(kinds) == 1 else pa.string() if kinds else pa.null()
        columns[name] = pa.concat_arrays([each.cast(kind_of) for each in arrays])
    return columns
