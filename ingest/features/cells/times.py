"""Reads columns of times: cells of any type become milliseconds since 1970, null if no time.

`iso` stands for the forms of ISO 8601 and its relatives that programs write: a date, a time with a
fraction after a point or a comma, and `Z`, ` UTC`, ` GMT` or an offset. A date outside of Arrow's
range is a value like any other, so that its row is refused instead of its file.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.ingest.features.cells.values import are_numbers, plain

PER_MS = {"s": 1e-3, "ms": 1.0, "us": 1e3, "ns": 1e6}
"""Units since 1970 -> how many of them make a millisecond."""
ISO = "iso"
FRACTION = re.compile(r"[.,]%f")
"""In a pattern of strptime: a fraction of the second, which Arrow does not parse itself."""
_MOMENT = (
    r"^(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[T ](?P<clock>\d\d:\d\d(?::\d\d)?)(?:[.,](?P<part>\d{1,9}))?)?"
    r"\s?(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?$"
)
_WITH_FRACTION = r"^(?P<head>.*)[.,](?P<part>\d{1,9})(?P<tail>\D.*)?$"
_OFFSET = r"( [+-]\d\d:?\d\d|[+-]\d\d:?\d\d$|Z$)"
_PARTS = {"Y": r"\d{4}", **dict.fromkeys("abABhp", r"\w+"), "z": r"\S+"}
"""Directives of strptime -> their texts; one or two digits for others."""
_NULL = pa.scalar(None, pa.string())


def milliseconds_of(column: pa.Array, form: str, zone: str | None = None) -> pa.Array:
    """Return the times of a column as int64, null where a cell is not a time.

    form, zone: `timestamp_format` and `time_zone` of a layout. A column of timestamps or dates
    needs no format. A time that occurs twice in autumn is the first of the two. One that a clock
    skips in spring is the moment of the change.
    """
    kind = column.type
    if pt.is_date(kind) or pt.is_timestamp(kind):
        return _of_temporal(column, zone)
    if form in PER_MS:
        return _scaled(plain(column), PER_MS[form])
    if pt.is_nested(kind):
        return pa.nulls(len(column), pa.int64())
    texts = pc.utf8_trim_whitespace(plain(column).cast(pa.string()))
    if form == ISO:
        return _iso(texts, zone)
    if FRACTION.search(form) is None:
        return _in_utc(_parsed(texts, form), zone)
    form = FRACTION.sub("", form, 1)
    parts = pc.extract_regex(texts, _WITH_FRACTION)
    whole = pc.binary_join_element_wise(
        pc.struct_field(parts, "head"), pc.struct_field(parts, "tail"), ""
    )
    times = pc.add(_parsed(whole, form), _fraction_ms(pc.struct_field(parts, "part")))
    return _in_utc(pc.coalesce(times, _parsed(texts, form)), zone)


def joined_times(columns: Sequence[pa.Array]) -> pa.Array:
    """Return one column of texts made of columns of dates and of times of day."""
    if len(columns) == 1:
        return columns[0]
    texts = [
        (each.cast(pa.date32(), safe=False) if pt.is_timestamp(each.type) else plain(each)).cast(
            pa.string()
        )
        for each in columns
    ]
    return pc.binary_join_element_wise(*map(pc.utf8_trim_whitespace, texts), " ")


def _of_temporal(column: pa.Array, zone: str | None) -> pa.Array:
    """Return times of a type of times; floored, since Arrow rounds those before 1970 up."""
    kind = column.type
    if pt.is_date(kind):
        days = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return _in_utc(pc.multiply(days, 86_400_000), zone)
    counts = column.cast(pa.int64()).fill_null(0).to_numpy()
    per_s = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.unit]
    if per_s > 1000:
        counts = np.floor_divide(counts, per_s // 1000)
    elif per_s < 1000:
        counts = np.clip(counts, -(1 << 52), 1 << 52) * (1000 // per_s)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    times = pa.array(counts, pa.int64(), mask=missing)
    return times if kind.tz else _in_utc(times, zone)


def _parsed(texts: pa.Array, form: str) -> pa.Array:
    """Return times in a pattern; null for 30 February, which strptime reads as 2 March."""
    moments = pc.strptime(texts, form, "ms", error_is_null=True)
    times = moments.cast(pa.int64())
    before, day, _ = form.partition("%d")
    if not day:
        return times
    if "%z" in form:  # the day is that of the zone
        texts = pc.replace_substring_regex(texts, _OFFSET, "")
        moments = pc.strptime(texts, form.replace("%z", "").rstrip(), "ms", error_is_null=True)
    early = pc.fill_null(pc.less_equal(pc.day(moments), 3), False)
    parts = re.sub("%(.)", lambda found: _PARTS.get(found[1], r"\d\d?"), re.escape(before))
    found = pc.extract_regex(texts.filter(early), f"^{parts}(?P<day>\\d\\d?)")
    days = pc.struct_field(found, "day").cast(pa.int64())
    wrong = pc.fill_null(pc.not_equal(days, pc.day(moments.filter(early))), False)
    kept = pc.if_else(wrong, pa.scalar(None, pa.int64()), times.filter(early))
    return pc.replace_with_mask(times, early, kept)


def _scaled(column: pa.Array, per_ms: float) -> pa.Array:
    kind = column.type
    if pt.is_string(kind):
        column = _numbers(column)
        kind = column.type
    if not (pt.is_integer(kind) or pt.is_floating(kind)):
        return pa.nulls(len(column), pa.int64())
    if pt.is_integer(kind):
        counts = column.cast(pa.int64(), safe=False)
        if per_ms >= 1.0:
            return counts if per_ms == 1.0 else pc.divide(counts, int(per_ms))
        column = counts.cast(pa.float64(), safe=False)
    milliseconds = pc.trunc(pc.divide(column, per_ms))
    fits = pc.less(pc.abs(milliseconds), 9e18)  # NaN and infinity do not
    milliseconds = pc.if_else(fits, milliseconds, pa.scalar(None, pa.float64()))
    return milliseconds.cast(pa.int64(), safe=False)


def _numbers(column: pa.Array) -> pa.Array:
    """Return int64 if every text is a whole number, else float64 with null for other texts."""
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:
        known = pc.if_else(pa.array(are_numbers(column)), column, _NULL)
        return pc.utf8_trim_whitespace(known).cast(pa.float64())


def _iso(texts: pa.Array, local_zone: str | None) -> pa.Array:
    kind: Any
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            return _of_temporal(texts.cast(kind), local_zone)
        except pa.ArrowInvalid:
            pass  # other forms, or a year that nanoseconds cannot count
    parts = pc.extract_regex(texts, _MOMENT)
    day, clock, part, zone = (
        pc.struct_field(parts, name) for name in ("day", "clock", "part", "zone")
    )
    clock = pc.if_else(pc.equal(clock, ""), "00:00", clock)
    local = _moments(pc.binary_join_element_wise(day, clock, " "))
    local = pc.add(local, _fraction_ms(part))
    offsets = pc.fill_null(zone, "").dictionary_encode()
    known = pa.array([_offset_ms(each) for each in offsets.dictionary.to_pylist()], pa.int64())
    zoned = pc.subtract(local, known.take(offsets.indices))
    return pc.coalesce(zoned, _in_utc(local, local_zone))


def _moments(texts: pa.Array) -> pa.Array:
    kind = pa.timestamp("s")
    try:
        moments = texts.cast(kind)
    except pa.ArrowInvalid:  # some are no dates, such as 2026-02-30
        moments = pa.array([_moment(each, kind) for each in texts.to_pylist()], kind)
    return pc.multiply(moments.cast(pa.int64()), 1000)


def _moment(text: str | None, kind: pa.DataType) -> Any:
    try:
        return None if text is None else pa.scalar(text).cast(kind).value
    except pa.ArrowInvalid:
        return None


def _fraction_ms(digits: pa.Array) -> pa.Array:
    return pc.utf8_rpad(pc.utf8_slice_codeunits(digits, 0, 3), 3, "0").cast(pa.int64())


def _offset_ms(zone: str) -> int | None:
    """Return the offset of a text such as +01:30; None without a zone."""
    if not zone:
        return None
    digits = zone[1:].replace(":", "").ljust(4, "0")
    if not digits.isdigit():
        return 0
    minutes = 60 * int(digits[:2]) + int(digits[2:])
    return (-60_000 if zone[0] == "-" else 60_000) * minutes


def _in_utc(local_ms: pa.Array, zone: str | None) -> pa.Array:
    """Return local times of a zone (None: UTC) as int64 milliseconds since 1970."""
    if zone is None:
        return local_ms
    moments = local_ms.cast(pa.timestamp("ms"))
    there = pc.assume_timezone(moments, zone, ambiguous="earliest", nonexistent="latest")
    return there.cast(pa.int64())
