"""Finds the format of a column of times.

Each format is tried on some cells, and then on all of them. Day and month look alike in
`03/04/2026`, so the data decides between the two: times of a log are in order, close to each other,
and not in the future. If both fit equally, the format is ambiguous, and the user decides.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.ingest.events.contract import AHEAD_MS, EARLIEST_MS
from headrace.ingest.features.cells.times import ISO, PER_MS, milliseconds_of
from headrace.runtime.clock import wall_ms

_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d")
_CLOCKS = (" %H:%M:%S", " %H:%M", " %I:%M:%S %p", " %I:%M %p", ", %I:%M:%S %p", ", %H:%M:%S")
DIGITS = ("%Y%m%d%H%M%S", "%Y%m%d", "%y%m%d%H")
"""Formats that read ordinary numbers."""
_PATTERNS = (
    *(day + clock for day in _DAYS for clock in _CLOCKS),
    *(*DIGITS, "%Y%m%dT%H%M%SZ", "%Y%m%d %H:%M:%S"),
    *("%d/%b/%Y:%H:%M:%S %z", "%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S %z"),
    *(
        "%a %b %d %H:%M:%S %Y",
        "%d %b %Y %H:%M:%S",
        "%b %d, %Y %I:%M:%S %p",
        "%b %d, %Y, %I:%M:%S %p",
    ),
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d"),
)
_TRIED = 200
_LEAST = 0.95
"""Share of the cells that are times in a format."""


class TimeForm(NamedTuple):
    """A format that reads a column of times."""

    form: str
    """"" for a column of times, which needs none."""
    other: str = ""
    """A format that reads other times as well: the column is ambiguous."""


def guess_time_format(column: pa.Array) -> str | None:
    """Return the `timestamp_format` that reads a column; "" if it needs none, None if none does."""
    found = form_of(column)
    return None if found is None else found.form


def form_of(column: pa.Array, least: float = _LEAST) -> TimeForm | None:
    """Return the format that reads a column of times, None if none does.

    least: the share of the cells that must be times since 2000 and at most a day ahead.
    """
    cells = column.drop_null()
    if not len(cells) or pt.is_nested(column.type):
        return None
    if pt.is_timestamp(column.type) or pt.is_date(column.type):
        return TimeForm("") if _share(cells, ISO) >= least else None
    forms: tuple[str, ...] = tuple(PER_MS)
    if pt.is_string(column.type):
        forms = (*PER_MS, ISO, *_PATTERNS)
    elif pt.is_integer(column.type):
        forms = (*PER_MS, *DIGITS)
    elif not pt.is_floating(column.type):
        return None
    step = max(1, len(cells) // _TRIED)
    some = cells.take(pa.array(np.arange(0, len(cells), step)))
    shares = {form: _share(cells, form) for form in forms if _share(some, form) >= min(least, 0.5)}
    most = max(shares.values(), default=0.0)
    # a day after the 12th decides against the format that cannot read it
    read = [form for form, share in shares.items() if share == most >= least]
    if len(read) < 2 or "%" not in read[0]:
        return TimeForm(read[0]) if read else None
    first, second = sorted(read, key=lambda form: _disorder(cells, form))[:2]
    if _disorder(cells, first) < _disorder(cells, second) or _same(cells, first, second):
        return TimeForm(first)
    return TimeForm(first, second)


def _share(cells: pa.Array, form: str) -> float:
    times = milliseconds_of(cells, form).drop_null().to_numpy(zero_copy_only=False)
    good = np.count_nonzero((times >= EARLIEST_MS) & (times <= wall_ms() + AHEAD_MS))
    return float(good / len(cells))


def _disorder(cells: pa.Array, form: str) -> tuple[int, int]:
    """Return the times that come before their predecessor, and the largest gap between two."""
    times = milliseconds_of(cells, form).drop_null().to_numpy(zero_copy_only=False)
    gaps = np.diff(times)
    return int(np.count_nonzero(gaps < 0)), int(np.abs(gaps).max(initial=0))


def _same(cells: pa.Array, one: str, other: str) -> bool:
    same = pc.equal(milliseconds_of(cells, one), milliseconds_of(cells, other))
    return bool(pc.all(same).as_py())
