"""The sections `[statistics.NAME]`: inputs read from the counters of rows.

A statistic is read from the row of a single-valued field, or crossed from other statistics and
fields. Kernels walk through all of them as one program of arrays.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, field

from headrace.ingest.features.fields import LAST_NUMBER, NAME, FieldSet, kinds_of
from headrace.ingest.features.spec_sections import (
    Variant,
    Variants,
    expected,
    read_section,
    shown,
    tables_of,
)
from headrace.ingest.features.spec_text import SpecText, found_name, one_of

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SHOW, CLICK, RATE, AGE = 0, 1, 2, 3
_CODES = {"show": SHOW, "click": CLICK, "rate": RATE, "age": AGE}
Number = Annotated[int, Meta(ge=1, le=LAST_NUMBER)]
Cross = Annotated[
    tuple[str, ...],
    Meta(min_length=2),
    expected("= a list of two or more names of statistics and fields"),
]


class Statistic(Struct, frozen=True):
    """One statistic. Keys that its kind does not take keep their default."""

    name: str
    number: Number
    """Unique number of this statistic. Ids contain it, so never reuse it."""
    kind: str = field(default="", name="statistic")
    """The value that is read from the row."""
    of: Annotated[str, expected("= the name of a single-valued field")] = ""
    """The single-valued field whose row is read."""
    prior_clicks: Annotated[float, Meta(ge=1e-6, le=1e9)] = 0.9
    """Clicks assumed for every row, added to the observed ones."""
    prior_shows: Annotated[float, Meta(ge=1e-6, le=1e9)] = 10.0
    """Shows assumed for every row, added to the observed ones."""
    per_doubling: Annotated[float, Meta(ge=0.01, le=1000.0)] = 1.0
    """Logarithmic buckets per doubling of the value."""
    cross: Cross = ()
    """Names of the parts of a cross."""


class CrossedStatistic(Struct, frozen=True, forbid_unknown_fields=True):
    """A statistic crossed from statistics and fields."""

    number: Number
    """Unique number of this statistic. Ids contain it, so never reuse it."""
    cross: Cross
    """Statistics and single-valued fields to combine: at least one statistic, and no cross of
    statistics."""


_BUCKETS = ("per_doubling",)
STATISTIC = Variants(
    Statistic,
    "statistic",
    {
        "show": Variant("1 + shows.", _BUCKETS),
        "click": Variant("1 + clicks.", _BUCKETS),
        "rate": Variant(
            "(clicks + `prior_clicks`) / (shows + `prior_shows`).",
            (*_BUCKETS, "prior_clicks", "prior_shows"),
        ),
        "age": Variant(
            "1 + seconds since the row was first seen. A row never shown has a bucket of its own.",
            _BUCKETS,
        ),
    },
    always=("number", "of"),
    otherwise=" (or cross)",
)


class StatisticsProgram(NamedTuple):
    """The levels to read and the crosses to make, as the arrays that a kernel walks through."""

    kinds: Integers  # (levels,) SHOW, CLICK, RATE or AGE
    fields: Integers  # (levels,) column of the single-valued field whose row is read
    prior_clicks: Floats  # (levels,)
    prior_shows: Floats  # (levels,)
    per_doubling: Floats  # (levels,) buckets per doubling of the value
    numbers: npt.NDArray[np.uint64]  # (statistics,) the low bits of their ids
    starts: Integers  # (statistics + 1,) where in `parts` a statistic begins
    parts: Integers  # level i as i, column j of the single-valued fields as -1 - j


def program(statistics: Sequence[Statistic], fields: FieldSet) -> StatisticsProgram:
    """Return the arrays of these statistics."""
    read_ones = [each for each in statistics if each.kind]
    column = {each.name: i for i, each in enumerate(fields.singles)}
    place = {name: -1 - i for name, i in column.items()}
    place |= {each.name: i for i, each in enumerate(read_ones)}
    parts = [[place[part] for part in each.cross or (each.name,)] for each in statistics]
    return StatisticsProgram(
        np.array([_CODES[each.kind] for each in read_ones], np.int64),
        np.array([column[each.of] for each in read_ones], np.int64),
        np.array([each.prior_clicks for each in read_ones], np.float64),
        np.array([each.prior_shows for each in read_ones], np.float64),
        np.array([each.per_doubling for each in read_ones], np.float64),
        np.array([each.number for each in statistics], np.uint64),
        np.cumsum([0, *map(len, parts)]).astype(np.int64),
        np.array([each for some in parts for each in some], np.int64),
    )


def parse_statistics(
    tables: Mapping[str, object], fields: FieldSet, where: SpecText
) -> tuple[Statistic, ...]:
    """Return the statistics in ascending order of number. Raises SpecError."""
    named = tables_of(tables, where, "statistics")
    found = [_statistic(table, name, where) for name, table in named.items()]
    all_fields = (*fields.singles, *fields.bags, *fields.numbers)
    owner = {each.number: each.name for each in all_fields}
    for each in found:
        keys = ("statistics", each.name)
        if any(each.name == field.name for field in all_fields):
            raise where.error(keys, "a name that no field has", f'"{each.name}"')
        if each.number in owner:
            raise where.error(
                (*keys, "number"),
                "a number that no other field or statistic has",
                f'{each.number}, the number of "{owner[each.number]}"',
            )
        owner[each.number] = each.name
        _check_parts(each, found, fields, where)
    return tuple(sorted(found, key=lambda each: each.number))


def _statistic(table: Mapping[str, object], name: str, where: SpecText) -> Statistic:
    keys = ("statistics", name)
    if not NAME.fullmatch(name):
        raise where.error(keys, "a statistic's name of a-z, 0-9 and _", f'"{name}"')
    if "cross" in table:
        crossed = read_section(CrossedStatistic, table, where, *keys)
        return Statistic(name, crossed.number, cross=crossed.cross)
    return STATISTIC.read(table, where, *keys, name=name)


def _check_parts(
    statistic: Statistic, all_statistics: Sequence[Statistic], fields: FieldSet, where: SpecText
) -> None:
    """Raise SpecError unless a statistic names fields and statistics that it can be made of."""
    keys = ("statistics", statistic.name)
    singles = [each.name for each in fields.singles]
    levels = [each.name for each in all_statistics if each.kind]
    kinds = kinds_of((*fields.singles, *fields.bags, *fields.numbers))
    kinds |= {each.name: "a statistic" for each in all_statistics}
    if statistic.kind and statistic.of not in singles:
        wanted = f"of = the name of a single-valued field, {one_of(singles, statistic.of)}"
        raise where.error((*keys, "of"), wanted, found_name(statistic.of, kinds))
    for part in statistic.cross:
        if part not in singles and part not in levels:
            known = one_of(singles + levels, part)
            wanted = f"cross of single-valued fields and statistics, {known}"
            raise where.error((*keys, "cross"), wanted, found_name(part, kinds))
    if statistic.cross and not any(part in levels for part in statistic.cross):
        wanted = f"cross with at least one statistic, {one_of(levels, statistic.cross[0])}"
        raise where.error((*keys, "cross"), wanted, f"fields alone: {shown(statistic.cross)}")
