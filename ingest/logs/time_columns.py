"""Reads columns of times and of clicks: values of any type become milliseconds since 1970.

A value that is not a time is null. Its row is still sent, and the joiner refuses it with a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.logs.layout import FRACTION

if TYPE_CHECKING:
    from headrace.ingest.logs.layout import ClickLayout, EventLayout

PER_MS = {"s": 1e-3, "ms": 1.0, "us": 1e3, "ns": 1e6}
"""Units since 1970 -> how many of them make a millisecond."""
ISO = "iso"
_NUMBER = r"^\s*[+-]?\d+(\.\d*)?([eE][+-]?\d+)?\s*$"
_MOMENT = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?$"
_FRACTION_TEXT = r"^(?P<whole>.*)\.(?P<digits>\d{1,9})$"
_ZONE = r"\s?(Z|[+-]\d\d(:?\d\d)?)$"
NOT_CLICKED = (
    *("", "0", "0.0", "-1", "-1.0", "false", "f", "no", "n", "off", "none", "null"),
    *("nein", "non", "nee", "nej", "nei", "nie", "ei", "não"),
)
"""Texts of a column of clicks that say that there was no click, in lower case."""
CLICKED = (
    *("1", "1.0", "true", "t", "yes", "y", "on"),
    *("ja", "j", "oui", "si", "sì", "sí", "sim", "tak", "kyllä"),
)


def milliseconds_of(column: pa.Array, form: str, zone: str | None = None) -> pa.Array:
    """Return the times of a column as int64, null where a value is not a time.

    form, zone: `timestamp_format` and `time_zone` of a layout. A column of timestamps or dates
    needs no format.
    """
    kind = column.type
    if pa.types.is_temporal(kind) and not pa.types.is_time(kind) and not pa.types.is_duration(kind):
        moments = column.cast(pa.timestamp("ns", kind.tz if pa.types.is_timestamp(kind) else None))
        whole = pc.floor_temporal(moments, unit="millisecond")
        times = whole.cast(pa.timestamp("ms", moments.type.tz)).cast(pa.int64())
        return times if moments.type.tz else _in_utc(times, zone)
    if form in PER_MS:
        return _scaled(column, PER_MS[form])
    texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
    if form == ISO:
        return _iso(texts, zone)
    if form.endswith(FRACTION):
        parts = pc.extract_regex(texts, _FRACTION_TEXT)
        digits = pc.utf8_slice_codeunits(pc.struct_field(parts, "digits"), 0, 3)
        fraction = pc.utf8_rpad(digits, 3, "0").cast(pa.int64())
        whole = _parsed(pc.struct_field(parts, "whole"), form.removesuffix(FRACTION))
        return pc.add(_in_utc(whole, zone), fraction)
    return _in_utc(_parsed(texts, form), zone)


def click_times(
    block: dict[str, pa.Array], click: ClickLayout, event: EventLayout, times: pa.Array
) -> pa.Array:
    """Return the time of each row's click as int64, null without one. times: of the impressions."""
    if click.timestamp is not None:
        return milliseconds_of(block[click.timestamp], event.timestamp_format, event.time_zone)
    assert click.column is not None
    given = block[click.column]
    if pa.types.is_null(given.type):
        return pa.nulls(len(given), pa.int64())
    if click.values:
        said = pc.utf8_lower(pc.utf8_trim_whitespace(given.cast(pa.string())))
        wanted = [each.strip().lower() for each in click.values]
        clicked = pc.is_in(said, pa.array(wanted, pa.string()))
    elif pa.types.is_boolean(given.type):
        clicked = given
    elif pa.types.is_integer(given.type) or pa.types.is_floating(given.type):
        clicked = pc.greater(given, 0)  # some logs write -1 for no click
    else:
        said = pc.utf8_lower(pc.utf8_trim_whitespace(given.cast(pa.string())))
        clicked = pc.invert(pc.is_in(said, pa.array(NOT_CLICKED)))
        clicked = pc.and_(clicked, pc.is_valid(given))
    shown = pc.add(times, click.delay_ms)
    return pc.if_else(pc.fill_null(clicked, False), shown, pa.scalar(None, pa.int64()))


def _parsed(texts: pa.Array, form: str) -> pa.Array:
    return pc.strptime(texts, form, "ms", error_is_null=True).cast(pa.int64())


def _scaled(column: pa.Array, per_ms: float) -> pa.Array:
    if pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.int64())
    numbers = column if pa.types.is_integer(column.type) else _numbers(column)
    if pa.types.is_integer(numbers.type):
        numbers = numbers.cast(pa.int64(), safe=False)
        if per_ms == 1.0:
            return numbers
        if per_ms > 1.0:
            return pc.divide(numbers, int(per_ms))
        return pc.multiply(numbers, int(1 / per_ms))
    milliseconds = pc.trunc(pc.divide(numbers, per_ms))
    fits = pc.less(pc.abs(milliseconds), 9e18)  # NaN and infinity do not
    milliseconds = pc.if_else(fits, milliseconds, pa.scalar(None, pa.float64()))
    return milliseconds.cast(pa.int64(), safe=False)


def _numbers(column: pa.Array) -> pa.Array:
    """Return int64 if every value is a whole number, else float64 with null for other texts."""
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return column.cast(pa.float64(), safe=False)
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        number = pc.match_substring_regex(column, _NUMBER)
        known = pc.if_else(number, column, pa.scalar(None, column.type))
        return pc.utf8_trim_whitespace(known).cast(pa.float64())


def _iso(texts: pa.Array, local_zone: str | None) -> pa.Array:
    zoned = pc.fill_null(pc.match_substring_regex(texts, _ZONE), False)
    # a date has no zone, though it ends like one: 2026-01-01
    zoned = pc.and_(zoned, pc.greater(pc.fill_null(pc.utf8_length(texts), 0), 10))
    plain = pc.if_else(zoned, pc.replace_substring_regex(texts, _ZONE, ""), texts)
    known = pc.match_substring_regex(plain, _MOMENT)
    texts = pc.if_else(known, texts, pa.scalar(None, pa.string()))
    parts = []
    for chosen, zone in ((pc.invert(zoned), None), (zoned, "UTC")):
        part = pc.if_else(chosen, texts, pa.scalar(None, pa.string()))
        moments = _moments(part, zone)
        parts.append(moments if zone else _in_utc(moments, local_zone))
    return pc.coalesce(*parts)


def _moments(texts: pa.Array, zone: str | None) -> pa.Array:
    kind: Any = pa.timestamp("ns", zone)
    try:
        moments = texts.cast(kind)
    except pa.ArrowInvalid:  # some are no dates, such as 2026-02-30
        moments = pa.array([_moment(each, kind) for each in texts.to_pylist()], kind)
    return pc.divide(moments.cast(pa.int64()), 1_000_000)


def _moment(text: str | None, kind: pa.DataType) -> Any:
    try:
        return None if text is None else pa.scalar(text).cast(kind).value
    except pa.ArrowInvalid:
        return None


def _in_utc(local_ms: pa.Array, zone: str | None) -> pa.Array:
    """Return local times of a zone (None: UTC) as int64 milliseconds since 1970.

    A time that occurs twice in autumn is the first of the two. One that a clock skips in spring is
    the moment of the change.
    """
    if zone is None:
        return local_ms
    moments = local_ms.cast(pa.timestamp("ms"))
    there = pc.assume_timezone(moments, zone, ambiguous="earliest", nonexistent="latest")
    return there.cast(pa.int64())
