"""Counting one example in one of its rows, compiled."""

from __future__ import annotations

import numpy as np

from ingest.compiled import part
from learner.pending import pending_at, since
from pserver.columns import counters_at


def _count(row, pending, gaining, place, shows, clicks, second):  # type: ignore[no-untyped-def]
    row.shows += np.uint64(shows)
    row.last_seen = max(row.last_seen, second)
    if not pending.since:
        gaining.order[gaining.count[0]] = place
        gaining.count[0] += 1
    pending.since = max(pending.since, since(second))
    pending.shows += np.uint32(shows)
    pending.last_seen = max(pending.last_seen, second)
    # rare, so that to look costs less than to write what is there already
    if clicks:
        row.clicks += np.uint64(clicks)
        pending.clicks += np.uint32(clicks)
    if second < row.first_seen:
        row.first_seen = second


# compiled apart: of two kinds of records in one function numba may take the longer for the shorter
_count_counters = part(_count)
count_in = part(_count)
"""Count an example in a row, given records of it, and of what is pending, that hold floats too."""


@part
def count_row(columns, gaining, place, shows, clicks, second):  # type: ignore[no-untyped-def]
    """Count an example in the row at `place`, in the view and in what is pending alike.

    shows, clicks: that it adds. second: of its event time.
    """
    row, pending = counters_at(columns.shows, place), pending_at(gaining.shows, place)
    _count_counters(row, pending, gaining, place, shows, clicks, second)
