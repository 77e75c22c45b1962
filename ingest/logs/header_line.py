"""The first line of a CSV: its delimiter, and whether it is a row instead of a header."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DELIMITERS = (",", "\t", ";", "|")
_CODECS = {".gz": "gzip", ".zst": "zstd"}
_MOST_BYTES = 1 << 16
_VALUE = re.compile(r"^\s*([+-]?\d+([.,]\d+)?|\d{4}-\d\d-\d\d.*)\s*$")
"""A number or a time, which are no names of columns."""


def delimiter_of(path: Path) -> str:
    """Return the character that most likely separates the columns."""
    with pa.OSFile(str(path), "rb") as file:
        packed = _CODECS.get(path.suffix)
        stream = pa.CompressedInputStream(file, packed) if packed else file
        first = stream.read(_MOST_BYTES).split(b"\n")[0].decode("utf-8", "replace")
    return max(_DELIMITERS, key=first.count)


def value_among(names: Sequence[str]) -> str | None:
    """Return the first of these names of columns that looks like a value; None without one.

    Columns that are numbered from 0 have numbers as names.
    """
    if list(names) == [str(number) for number in range(len(names))]:
        return None
    return next((each for each in names if not each.strip() or _VALUE.match(each)), None)
