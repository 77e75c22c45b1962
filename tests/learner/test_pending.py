"""What is pending stays with its row when the view is made compact."""

from __future__ import annotations

import numpy as np

from learner.pending import Pending
from pserver.gains import Gains
from pserver.store import Shape
from pserver.table import RowTable

SHAPE = Shape("m", 1, 2, "f", "s")


def test_pending_gains_stay_with_their_rows_when_others_go() -> None:
    view, folded = RowTable(2), RowTable(2)
    ids = np.arange(1, 5001, dtype=np.uint64)
    ones = np.ones(5000, np.uint32)
    folded.add(Gains(ids, ones, ones, ones, ones, np.ones((5000, 2), np.float32)))
    pending = Pending(view, SHAPE)
    pending.refresh(folded, ids, None)
    gaining = pending.reserve()
    for row_id, gained in ((4000, 3), (17, 5), (2500, 7)):
        [place] = view.find(np.array([row_id], np.uint64))
        gaining.touched[place] = True
        gaining.order[gaining.count[0]] = place
        gaining.count[0] += 1
        gaining.shows[place] = gained
        gaining.first_seen[place] = gaining.last_seen[place] = gained
    kept = np.array([4000, 4999], np.uint64)
    folded.clear(folded.find(np.setdiff1d(ids, kept)))
    pending.refresh(folded, ids, None)
    pending.compact()
    assert sorted(view.ids.tolist()) == [17, 2500, 4000, 4999]
    shows = {int(i): int(view.columns.shows[p]) for p, i in enumerate(view.ids)}
    assert shows == {17: 5, 2500: 7, 4000: 4, 4999: 1}
    assert pending.gaining.touched.shape == view.columns.ids.shape
    gains = pending.take([0])[0]
    assert gains.ids.tolist() == [4000, 17, 2500], "as they were touched"
    assert gains.shows.tolist() == [3, 5, 7]
    assert gains.first_seen.tolist() == [3, 5, 7]
    assert len(pending) == 0
    assert not pending.gaining.touched.any()


def test_what_is_pending_goes_along_when_the_view_grows() -> None:
    view = RowTable(1)
    pending = Pending(view, SHAPE)
    for first in range(0, 5000, 500):
        ids = np.arange(first + 1, first + 501, dtype=np.uint64)
        view.reserve(500)
        gaining = pending.reserve()
        places = view.find_or_add(ids)
        for place, row_id in zip(places.tolist(), ids.tolist(), strict=True):
            gaining.order[gaining.count[0]] = place
            gaining.count[0] += 1
            gaining.touched[place] = True
            gaining.shows[place] = gaining.clicks[place] = row_id
            gaining.first_seen[place] = gaining.last_seen[place] = row_id
            gaining.values[place] = row_id
    gains = pending.take([0])[0]
    expected = np.arange(1, 5001)
    for column in (gains.ids, gains.shows, gains.clicks, gains.first_seen, gains.last_seen):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(gains.values[:, 0], expected)
    assert len(pending) == 0
