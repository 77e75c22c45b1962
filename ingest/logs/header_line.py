"""The first line of a CSV: its delimiter, and whether it is a row instead of a header."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from headrace.ingest.features.spec_text import SpecError
from headrace.ingest.logs.byte_streams import refusal_of, unpacked

_DELIMITERS = (",", "\t", ";", "|")
_MOST_BYTES = 1 << 16
_VALUE = re.compile(r"^\s*([+-]?\d+([.,]\d+)?|\d{4}-\d\d-\d\d.*)\s*$")
"""A number or a time, which are no names of columns."""


def delimiter_of(path: Path) -> str:
    """Return the character that most likely separates the columns. Raises SpecError."""
    try:
        with pa.OSFile(str(path), "rb") as file:
            text = unpacked(file, path).read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise refusal_of(path, error) from error
    first, _, rest = text.decode("utf-8", "replace").strip().partition("\n")
    first = first.strip()
    if first.startswith("sep=") and len(first) == len("sep=") + 1:
        raise SpecError(
            f"{path}: expected the names of columns in the first line, got {first!r}: remove this "
            "line, which only spreadsheets read"
        )
    # a title or a comment above the names has none
    known = first if any(map(first.count, _DELIMITERS)) else rest.partition("\n")[0]
    return max(_DELIMITERS, key=known.count)


def value_among(names: Sequence[str]) -> str | None:
    """Return the first of these names of columns that looks like a value; None without one.

    Columns that are numbered from 0 have numbers as names.
    """
    if list(names) == [str(number) for number in range(len(names))]:
        return None
    return next(filter(_VALUE.match, names), None)
