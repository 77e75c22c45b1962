"""Reads numbers with a decimal comma: `3,5` and `1.234,5` become `3.5` and `1234.5`.

A comma may also separate thousands or the items of a bag. So these columns are named in the layout,
`[file] decimal_commas`, and a guess names them only if their values leave no doubt.
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

_WITH_COMMA = re.compile(r"\s*[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+\s*")
_NUMBER = r"^\s*[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d*)?\s*$"
_PLAIN_OR_COMMA = r"^\s*[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?\s*$"
_GROUPED = r"^\s*[+-]?\d{1,3}((,\d{3})+\.\d+|(\.\d{3})+,\d+)\s*$"
_NO_THOUSANDS = r",(\d\d?|\d{4,})\s*$"
_LEAST_WITH_COMMA = 0.5
"""Share of the values: in a bag, many rows have a single item."""


def has_decimal_comma(text: str) -> bool:
    """Whether a text may be a number with a decimal comma."""
    return _WITH_COMMA.fullmatch(text) is not None


def are_grouped(column: pa.Array) -> pa.Array:
    """Return which texts can only be numbers with separated thousands: 1,234.5 and 1.234,5."""
    with_comma = pc.match_substring(column, ",")
    if not pc.any(with_comma).as_py():  # a fourth of the time of a pattern
        return pc.fill_null(with_comma, False)
    return pc.fill_null(pc.match_substring_regex(column, _GROUPED), False)


def with_points(column: pa.Array) -> pa.Array:
    """Return a column of texts with decimal points; other columns unchanged."""
    if not pa.types.is_string(column.type):
        return column
    bare = pc.replace_substring(pc.utf8_trim_whitespace(column), ".", "")
    numeric = pc.match_substring_regex(column, _NUMBER)
    return pc.if_else(numeric, pc.replace_substring(bare, ",", "."), column)


def are_decimal_commas(column: pa.Array) -> bool:
    """Whether the commas in a column can only be decimal commas, for a guess."""
    if not pa.types.is_string(column.type):
        return False
    texts = column.drop_null()
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, _PLAIN_OR_COMMA)).as_py():
        return False
    share = pc.mean(pc.match_substring(texts, ",")).as_py()
    doubtless = pc.any(pc.match_substring_regex(texts, _NO_THOUSANDS)).as_py()
    return bool(share >= _LEAST_WITH_COMMA and doubtless)
