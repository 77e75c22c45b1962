"""Splits the texts of lists into items.

`a|b` has a separator. `[8, 9]`, `["a", "b"]` and `['a', 'b']` are lists as JSON, pandas and other
programs write them into a CSV. White space around an item is not a part of it.
"""

import ast
import re

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.features.cells.values import array_of, event_value, text_of

_BRACKETED = r"(?s)^\s*\[.*\]\s*$"
_QUOTED = r"""b?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_QUOTED_BY_NUMPY = re.compile(rf"\[\s*{_QUOTED}(?:\s+{_QUOTED})*\s*\]", re.DOTALL)
"""Texts without commas between them. Python would read `'a' 'b'` as one text."""


def split(column: pa.Array, separator: str) -> pa.Array:
    """Return the lists of a column of texts; lists stay as they are.

    An item that is empty is left out.
    """
    if pa.types.is_nested(column.type):
        return column
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    bracketed = pc.fill_null(pc.match_substring_regex(texts, _BRACKETED), False)
    if pc.any(bracketed).as_py():
        found = texts.dictionary_encode()
        known = array_of([_items(each, separator) for each in found.dictionary.to_pylist()])
        return known.take(found.indices)
    parts = pc.split_pattern(texts, separator)
    items = pc.utf8_trim_whitespace(parts.flatten())
    kept = pc.not_equal(items, "")
    if pc.all(kept).as_py():
        return pa.ListArray.from_arrays(_offsets(parts), items, mask=parts.is_null())
    lists = [
        None if each is None else [item for part in each if (item := part.strip())]
        for each in parts.to_pylist()
    ]
    return pa.array(lists, pa.list_(pa.string()))


def are_bracketed(column: pa.Array) -> bool:
    """Whether all cells are texts of lists in brackets."""
    if not pa.types.is_string(column.type) or column.null_count == len(column):
        return False
    return bool(pc.all(pc.match_substring_regex(column.drop_null(), _BRACKETED)).as_py())


def _offsets(parts: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(parts), 0)
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _items(text: str, separator: str) -> list[str]:
    if not (text.startswith("[") and text.endswith("]")):
        return [item for part in text.split(separator) if (item := part.strip())]
    if _QUOTED_BY_NUMPY.fullmatch(text):
        text = f"[{','.join(re.findall(_QUOTED, text, re.DOTALL))}]"
    for read in (orjson.loads, ast.literal_eval):
        try:
            found = event_value(list(read(text)))
        except (ValueError, SyntaxError, TypeError):
            continue
        return [text_of(each) for each in found if each is not None]
    text = text[1:-1]
    # numpy writes blanks between items
    parts = text.split(separator if separator in text else "," if "," in text else None)
    return [item for part in parts if (item := part.strip().strip("'\""))]
