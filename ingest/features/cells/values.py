"""Turns cells of any type into the values that events have: texts, numbers, true, false, lists.

All carriers of a value give it one form: `17` of an int64, a numpy scalar, a decimal, a dictionary
or an enum is the number 17. A decimal beyond 64 bits is the text of its digits, because a float
would make one id of two. UUIDs and times are their text. Bytes are their text in UTF-8. Other
bytes, and those that cannot be printed, are hexadecimal. NaN and infinity, which JSON lacks, are
absent.

Columns keep Arrow's types as far as events have them. Other types become values one distinct cell
at a time, through the function that a Python value takes, so both agree.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_UNTYPED = r"^([+-]?\d+\.0+|True|TRUE|False|FALSE)$"
_DECIMAL = r"^[+-]?\d+\.\d+$"
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_FLAGS = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
_PLAIN = frozenset((str, int, bool, type(None)))
_MISSING = ("NAType", "NaTType")
"""Types of the missing values of pandas, which is not imported for them."""
_NO_TEXT = pa.scalar(None, pa.string())
_FITS = range(-(1 << 63), 1 << 64)


def plain_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with values as in JSON. Raises TypeError: see `event_value`."""
    return {
        name: value if type(value) in _PLAIN else event_value(value)
        for name, value in event.items()
    }


def event_value(value: Any) -> Any:
    """Return the form in JSON of a Python value. Raises TypeError where it has none."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.datetime64):
        return event_value(value.astype("M8[us]").item())  # an integer of nanoseconds otherwise
    if isinstance(value, np.generic):
        return event_value(float(value) if isinstance(value, np.floating) else value.item())
    if isinstance(value, Enum):
        return event_value(value.value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    for kind, form in _FORMS:
        if isinstance(value, kind):
            return form(value)
    if type(value).__name__ in _MISSING:
        return None
    raise TypeError(
        f"expected a text, a number, a boolean, a time or a list of them, got {type(value)}"
    )


def _of_decimal(value: Decimal) -> int | float | str | None:
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value) if int(value) in _FITS else str(int(value))
    near = float(value)
    return near if Decimal(repr(near)) == value else format(value.normalize(), "f")


def _of_bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value.hex()
    return text if text.isprintable() else value.hex()


def _of_moment(value: datetime) -> str | None:
    if type(value).__name__ in _MISSING:
        return None
    # a Timestamp of pandas has nanoseconds, which no other clock of events has
    return datetime.combine(value.date(), value.timetz()).isoformat()


_FORMS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, str),
    (int, int),
    (datetime, _of_moment),
    ((date, time), lambda value: value.isoformat()),
    (Decimal, _of_decimal),
    (UUID, str),
    ((bytes, bytearray, memoryview), lambda value: _of_bytes(bytes(value))),
    (
        (list, tuple, Set, np.ndarray),
        lambda value: [event_value(each) for each in value],
    ),
    (Mapping, plain_event),
)
"""Types -> the form of a value of such a type; a subclass precedes its parent."""


def plain(column: pa.Array) -> pa.Array:
    """Return a column as texts, integers, floats, booleans, times, objects, or lists of those."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        known: dict[str, Callable[[Any], Any]] = {
            "arrow.uuid": lambda each: str(UUID(bytes=each)),
            "arrow.bool8": bool,
        }
        form = known.get(kind.extension_name)
        return plain(column.storage) if form is None else _converted(column.storage, form)
    if pt.is_dictionary(kind):
        return plain(column.dictionary).take(column.indices)
    if pt.is_run_end_encoded(kind):
        return plain(pc.run_end_decode(column))
    if pt.is_string(kind) or pt.is_integer(kind) or pt.is_boolean(kind):
        return column
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return column.cast(pa.string())
    if pt.is_floating(kind):
        wide = column.cast(pa.float64()) if pt.is_float16(kind) else column
        return pc.if_else(pc.is_finite(wide), wide, pa.scalar(None, wide.type))
    if pt.is_decimal(kind):
        return _of_decimals(column)
    if any(is_kind(kind) for is_kind in _ARE_BYTES):
        return _converted(column, _of_bytes)
    if is_list(kind):
        return _over_items(column, plain)
    return column


_ARE_BYTES = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)


def values_of(column: pa.Array) -> pa.Array:
    """Return a column as `plain` does, with the texts of times."""
    column = plain(column)
    if is_list(column.type):
        return _over_items(column, values_of)
    if not pt.is_temporal(column.type):
        return column
    if pt.is_duration(column.type):
        return column.cast(pa.int64())
    if pt.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    elif pt.is_time(column.type):
        column = column.cast(pa.time64("us"), safe=False)
    return _converted(column, event_value)


def cell_of(column: pa.Array, row: int) -> Any:
    """Return one cell as a value in JSON: Arrow needs pandas for a time in nanoseconds."""
    return values_of(column.slice(row, 1))[0].as_py()


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of Arrow's lists."""
    return bool(
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    )


def is_nested(kind: pa.DataType) -> bool:
    """Whether a type is one that no field of an event has: objects, and lists of lists."""
    return bool(pt.is_nested(kind.value_type if is_list(kind) else kind))


def typed(column: pa.Array) -> pa.Array:
    """Return a column of texts with its numbers and flags as such; others unchanged.

    `2.0` and `2` are one number, `True` and `TRUE` are true. Beside other texts, they become the
    canonical texts.
    """
    return _converted(column, _typed_text) if pt.is_string(column.type) else column


def _typed_text(text: str) -> Any:
    text = text.strip()
    if text in _FLAGS:
        return _FLAGS[text]
    try:
        number = int(text.partition(".")[0]) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        return text
    if isinstance(number, int):
        return number if number in _FITS else text
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() and int(number) in _FITS else number


def array_of(values: Sequence[Any]) -> pa.Array:
    """Return a column of values as in JSON; values of several types become canonical texts."""
    kinds = set(map(type, values)) - {type(None)}
    for kind in (None, pa.uint64()) if kinds == {int} else (None,):
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            pass
    if list in kinds:  # a single value of a bag is a bag of one
        lists = [each if each is None or type(each) is list else [each] for each in values]
        items = array_of([item for each in lists for item in each or ()])
        lengths = np.array([len(each or ()) for each in lists])
        return _list_array(lengths, items, pa.array([each is None for each in lists]))
    if kinds <= {int, float} and all(map(_is_exact, values)):
        return pa.array([None if each is None else float(each) for each in values], pa.float64())
    return pa.array([None if each is None else text_of(each) for each in values], pa.string())


def _is_exact(value: Any) -> bool:
    return type(value) is not int or abs(value) <= 1 << 53


def text_of(value: Any) -> str:
    """Return the canonical text of a value as in JSON: 2.0 and 2 are one value."""
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is float and value.is_integer():
        return str(int(value))
    return str(value)


def texts_of(column: pa.Array) -> pa.Array:
    """Return the canonical text of each cell, as ids of events have it."""
    column = values_of(column)
    if pt.is_string(column.type) or pt.is_integer(column.type) or pt.is_null(column.type):
        return column.cast(pa.string())
    return _converted(column, text_of).cast(pa.string())


def are_numbers(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which cells of a column a number can be read from; shape (n,)."""
    if not pt.is_string(column.type):
        return np.full(len(column), not pt.is_temporal(column.type))
    numeric = pc.fill_null(pc.match_substring_regex(column, _NUMBER), False)
    found: npt.NDArray[np.bool_] = numeric.to_numpy(zero_copy_only=False)
    return found


def without_empty(column: pa.Array) -> pa.Array:
    """Return the column with null in place of empty texts."""
    if not pt.is_string(column.type):
        return column
    empty = pc.equal(column, "")
    return pc.if_else(empty, _NO_TEXT, column) if pc.any(empty).as_py() else column


def numbers_of(column: pa.Array) -> npt.NDArray[np.float64] | None:
    """Return the numbers of a column of numbers or of texts of numbers, else None."""
    present = column.drop_null()
    if pt.is_string(column.type):
        if not are_numbers(present).all():
            return None
        present = pc.utf8_trim_whitespace(present).cast(pa.float64())
    elif not (pt.is_integer(column.type) or pt.is_floating(column.type)):
        return None
    found: npt.NDArray[np.float64] = present.cast(pa.float64(), safe=False).to_numpy(
        zero_copy_only=False
    )
    return found


def are_untyped(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which texts are such as 1.0, 76.50 and True, where JSON has 1, 76.5 and true; (n,).

    All decimals of a column count if some end in zeros and the numbers differ wherever the texts
    do: all texts have the same number of decimal places, or zeros follow the point alone, as in
    2.0. Versions such as 1.1 and 1.10 do not count.
    """
    if not pt.is_string(column.type):
        return np.zeros(len(column), np.bool_)
    found = _matched(column, _UNTYPED)
    texts = column.drop_null()
    if len(texts) and not found.all() and bool(_matched(texts, _DECIMAL).all()):
        places = pc.subtract(pc.utf8_length(texts), pc.find_substring(texts, "."))
        zeros, alone = _matched(texts, "0$"), _matched(texts, _UNTYPED)
        alike = pc.min(places).as_py() == pc.max(places).as_py()
        if zeros.any() and (alike or bool((alone | ~zeros).all())):
            found = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _matched(column: pa.Array, pattern: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.fill_null(
        pc.match_substring_regex(column, pattern), False
    ).to_numpy(zero_copy_only=False)
    return found


def _of_decimals(column: pa.Array) -> pa.Array:
    if column.type.scale == 0:
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            pass  # beyond 64 bits
    return _converted(column, _of_decimal)


def _converted(column: pa.Array, form: Callable[[Any], Any]) -> pa.Array:
    """Return the column with each distinct cell converted by a function."""
    found = column.dictionary_encode()
    try:
        cells = found.dictionary.to_pylist()
    except (ValueError, OverflowError):  # a year that Python's calendar lacks
        cells = found.dictionary.cast(pa.string()).to_pylist()
    converted = array_of([form(each) for each in cells])
    return pa.nulls(len(column)) if not len(converted) else converted.take(found.indices)


def _over_items(column: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return _list_array(lengths, convert(column.flatten()), column.is_null())


def _list_array(lengths: npt.NDArray[Any], items: pa.Array, missing: pa.Array) -> pa.Array:
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=missing)
