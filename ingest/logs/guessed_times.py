"""Finds the columns of times in the first rows of a file, for a guessed layout.

Names and values decide together. A column that is named like a time counts with half of its cells,
because the others are then refused with their number. Days are completed by a column of times of
day.
"""

import re
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.events.contract import EARLIEST_MS
from headrace.ingest.features.cells.labels import clicked_in
from headrace.ingest.features.cells.time_forms import DIGITS, form_of
from headrace.ingest.features.cells.times import ISO, PER_MS, joined_times, milliseconds_of

CLICK_NAME = re.compile(
    r"click|klick|cliqu|conver(t|sion)|purchase|gekauft|bestellt|bought|order(ed|s)?(_|$)|label|target|^y$"
    r"|(opened|tapped|applied|booked|played|watched|^opens|^taps|^plays)(_|$)",
    re.IGNORECASE,
)
_TIME_NAME = re.compile(r"time|date|_at$|^ts$|^at$|when|hour|moment|^t$", re.IGNORECASE)
SURELY_TIME = re.compile(
    r"(^|[_. ])(time|date|date_?time|time_?stamp|ts|at|when|moment)$"
    r"|(?-i:[a-z](Time|Date|Timestamp|At)$)",
    re.IGNORECASE,
)
_CLOCK = r"^\d{1,2}:\d\d(:\d\d([.,]\d{1,9})?)?( ?[AaPp][Mm])?$"
_LEAST_TIMES = 0.95
_LEAST_OF_NAMED = 0.5
"""Of a column named like a time. Its other rows are refused with their number and a message."""
_DAY_MS = 86_400_000


class GuessedTimes(NamedTuple):
    """One column of times, or two that make one."""

    column: str | list[str]
    cells: pa.Array
    form: str
    """"" for a column of timestamps, which need none."""
    share: float
    """Of the rows that have one."""
    other: str = ""
    """A format that reads other times: day and month are ambiguous."""

    @property
    def names(self) -> list[str]:
        """The columns."""
        return self.column if isinstance(self.column, list) else [self.column]

    def milliseconds(self, zone: str | None = None) -> pa.Array:
        """Return the times."""
        return milliseconds_of(self.cells, self.form or ISO, zone)


def has_no_zone(times: GuessedTimes) -> bool:
    """Whether times are texts or timestamps without a zone."""
    if times.form in PER_MS:
        return False
    kind = times.cells.type
    if not times.form:
        return pa.types.is_timestamp(kind) and kind.tz is None
    # the same text has another time in another zone only if it names none itself
    some = times._replace(cells=times.cells.drop_null().slice(0, 1))
    return bool(some.milliseconds("Etc/GMT-1") != some.milliseconds())


def times_of(name: str, column: pa.Array) -> GuessedTimes | None:
    """Return the times of a column, None if it has others."""
    column = _without_blanks(column)
    named = SURELY_TIME.search(name) and not CLICK_NAME.search(name)
    found = form_of(column, _LEAST_OF_NAMED if named else _LEAST_TIMES)
    if found is None or (found.form in DIGITS and not _TIME_NAME.search(name)):
        return None
    return GuessedTimes(name, column, found.form, 1 - column.null_count / len(column), found.other)


def _without_blanks(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return column
    blank = pc.equal(pc.utf8_trim_whitespace(column), "")
    return pc.if_else(blank, pa.scalar(None, column.type), column)


def impression_time(times: list[GuessedTimes], columns: dict[str, pa.Array]) -> GuessedTimes | None:
    """Return the times of the impressions, None without such a column."""

    def rank(each: GuessedTimes) -> tuple[bool, bool, float]:
        name = each.names[0]
        return (not CLICK_NAME.search(name), bool(_TIME_NAME.search(name)), each.share)

    # ids of ten digits look like seconds
    known = (each for each in times if rank(each)[1] or each.form not in PER_MS or _in_order(each))
    best = max(known, key=rank, default=None)
    if best is None or not rank(best)[0] or best.share < _LEAST_TIMES:
        return None
    return (_with_clock(best, columns) if are_days(best) else None) or best


def _in_order(times: GuessedTimes) -> bool:
    """Whether times of different rows differ, and hardly one comes before its predecessor."""
    found = times.milliseconds().drop_null().to_numpy(zero_copy_only=False)
    rising = float(np.mean(np.diff(found) >= 0)) if found.size > 1 else 0.0
    return rising >= _LEAST_TIMES and found[-1] > found[0]


def are_days(times: GuessedTimes) -> bool:
    """Whether all times are midnight, and written without an hour."""
    return "%H" not in times.form and bool(
        pc.all(pc.equal(_remainder(times.milliseconds(), _DAY_MS), 0)).as_py()
    )


def _remainder(numbers: pa.Array, size: int) -> pa.Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, size), size))


def _with_clock(days: GuessedTimes, columns: dict[str, pa.Array]) -> GuessedTimes | None:
    """Return the times that a second column completes, None if none has times of day."""
    for name, column in columns.items():
        if not (pa.types.is_string(column.type) or pa.types.is_time(column.type)):
            continue
        clock = column.cast(pa.string()).drop_null()
        if not len(clock) or not pc.all(pc.match_substring_regex(clock, _CLOCK)).as_py():
            continue
        cells = joined_times([days.cells, column])
        found = form_of(cells)
        if found is not None:
            return GuessedTimes([*days.names, name], cells, found.form, days.share, found.other)
    return None


def share_of_clicks(column: pa.Array, shown_at: GuessedTimes) -> float:
    """Return the share of rows with a time since 2000, 0 if the column has no times of clicks.

    Rows without a click may have a time of 1970 or a number such as 0.
    """
    cells = _without_blanks(column)
    temporal = pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type)
    if pa.types.is_boolean(cells.type) or (temporal and shown_at.form in PER_MS):
        return 0.0
    times = milliseconds_of(cells, shown_at.form or ISO)
    said = np.count_nonzero(clicked_in(cells, ["*"]))
    read = pc.sum(pc.is_valid(times)).as_py() or 0
    since = pc.sum(pc.greater_equal(times, EARLIEST_MS)).as_py() or 0
    return float(since / len(cells)) if read >= _LEAST_OF_NAMED * said else 0.0
