"""Counts one example in one of its rows. Compiled."""

import numpy as np

from headrace.learner.intrinsics.simd_rows import add_two, raise_four
from headrace.learner.kernels.pending_deltas import since
from headrace.pserver.rows.columns import counters_at
from headrace.runtime.kernels.numba_kernels import inlined


@inlined
def count_row(columns, gaining, place, shows, clicks, second):  # type: ignore[no-untyped-def]
    """Count an example in the row at `place`, in the view and in what is pending.

    shows, clicks: that it adds. second: of its event time.
    """
    add_two(columns.shows, place, np.uint64(shows), np.uint64(clicks))
    row = counters_at(columns.shows, place)
    row.last_seen = max(row.last_seen, second)
    if second < row.first_seen:  # rare, so a comparison costs less than an unconditional write
        row.first_seen = second
    more = np.uint32(shows), np.uint32(clicks), since(second), np.uint32(second)
    if not raise_four(gaining.shows, place, *more):
        gaining.order[gaining.count[0]] = place
        gaining.count[0] += 1
