"""Counting one example in one of its rows, compiled."""

from __future__ import annotations

import numpy as np

from ingest.compiled import part


@part
def count_row(columns, gaining, place, shows, clicks, second):  # type: ignore[no-untyped-def]
    """Count an example in the row at `place`, in the view and in what is pending alike.

    shows, clicks: that it adds. second: of its event time.
    """
    columns.shows[place] += np.uint64(shows)
    columns.clicks[place] += np.uint64(clicks)
    columns.first_seen[place] = min(columns.first_seen[place], second)
    columns.last_seen[place] = max(columns.last_seen[place], second)
    if not gaining.touched[place]:
        gaining.touched[place] = True
        gaining.first_seen[place] = second
        gaining.order[gaining.count[0]] = place
        gaining.count[0] += 1
    gaining.shows[place] += np.uint32(shows)
    gaining.clicks[place] += np.uint32(clicks)
    gaining.first_seen[place] = min(gaining.first_seen[place], second)
    gaining.last_seen[place] = max(gaining.last_seen[place], second)
