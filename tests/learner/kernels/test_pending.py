"""Pending deltas stay with their rows when the view is compacted or grows."""

import numpy as np
import pytest

from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.kernels.row_counters import count_row
from headrace.pserver.rows.deltas import NEVER, RowDeltas
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from headrace.runtime.kernels.numba_kernels import kernel

SHAPE = Shape("m", 1, 2, "f", "s")


@kernel
def _count_at(columns, gaining, seconds):  # type: ignore[no-untyped-def]
    for i in range(seconds.shape[0]):
        count_row(columns, gaining, 0, 1, 0, seconds[i])


def test_pending_deltas_stay_with_their_rows_through_compaction() -> None:
    view, folded = view_of(2), RowTable(2)
    ids = np.arange(1, 5001, dtype=np.uint64)
    ones = np.ones(5000, np.uint32)
    folded.add(RowDeltas(ids, ones, ones, ones, ones, np.ones((5000, 2), np.float32)))
    pending = PendingDeltas(view, SHAPE)
    pending.refresh(folded, ids, None)
    gaining = pending.reserve()
    for row_id, gained in ((4000, 3), (17, 5), (2500, 7)):
        [place] = view.find(np.array([row_id], np.uint64))
        gaining.order[gaining.count[0]] = place
        gaining.count[0] += 1
        gaining.shows[place] = gained
        gaining.since[place], gaining.last_seen[place] = NEVER - gained, gained
    kept = np.array([4000, 4999], np.uint64)
    folded.clear(folded.find(np.setdiff1d(ids, kept)))
    pending.refresh(folded, ids, None)
    pending.compact()
    assert sorted(view.ids.tolist()) == [17, 2500, 4000, 4999]
    shows = {int(i): int(view.columns.shows[p]) for p, i in enumerate(view.ids)}
    assert shows == {17: 5, 2500: 7, 4000: 4, 4999: 1}
    deltas = pending.take([0])[0]
    assert deltas.ids.tolist() == [4000, 17, 2500], "as they were touched"
    assert deltas.shows.tolist() == [3, 5, 7]
    assert deltas.first_seen.tolist() == [3, 5, 7]
    assert len(pending) == 0
    assert not pending.touched().any()


def test_deltas_of_a_view_that_has_grown_are_taken_out_once() -> None:
    view = view_of(2)
    pending = PendingDeltas(view, SHAPE)
    [place] = view.find_or_add(np.array([17], np.uint64))
    _count_at(view.columns, pending.reserve(), np.array([5], np.uint32))
    pending.gaining.values[place] = 0.5, -2.0
    view.reserve(50 * view.capacity)
    assert pending.largest() == 2.0
    assert pending.take([0])[0].values.tolist() == [[0.5, -2.0]]
    assert not pending.touched().any()
    assert not pending.reserve().values.any()
    _count_at(view.columns, pending.reserve(), np.array([6], np.uint32))
    assert pending.take([0])[0].first_seen.tolist() == [6], "listed again"


def test_pending_deltas_move_with_the_view_when_it_grows() -> None:
    view = view_of(1)
    pending = PendingDeltas(view, SHAPE)
    for first in range(0, 5000, 500):
        ids = np.arange(first + 1, first + 501, dtype=np.uint64)
        view.reserve(500)
        gaining = pending.reserve()
        places = view.find_or_add(ids)
        for place, row_id in zip(places.tolist(), ids.tolist(), strict=True):
            gaining.order[gaining.count[0]] = place
            gaining.count[0] += 1
            gaining.shows[place] = gaining.clicks[place] = row_id
            gaining.since[place], gaining.last_seen[place] = NEVER - row_id, row_id
            gaining.values[place] = row_id
    deltas = pending.take([0])[0]
    expected = np.arange(1, 5001)
    for column in (deltas.ids, deltas.shows, deltas.clicks, deltas.first_seen, deltas.last_seen):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(deltas.values[:, 0], expected)
    assert len(pending) == 0


@pytest.mark.parametrize(
    ("seconds", "first"),
    [((0, 5), 0), ((9, 4, 7), 4), ((NEVER - 1, 2**31), 2**31), ((NEVER, NEVER), NEVER - 1)],
)
def test_a_row_is_listed_once_whatever_the_seconds_in_which_it_is_counted(
    seconds: tuple[int, ...], first: int
) -> None:
    view = view_of(2)
    pending = PendingDeltas(view, SHAPE)
    view.find_or_add(np.array([17], np.uint64))
    _count_at(view.columns, pending.reserve(), np.array(seconds, np.uint32))
    assert len(pending) == 1
    deltas = pending.take([0])[0]
    assert deltas.first_seen.tolist() == [first]
    assert deltas.last_seen.tolist() == [max(seconds)]
    assert deltas.shows.tolist() == [len(seconds)]
    assert deltas.clicks.tolist() == [0]
    seen = view.everything()
    found = seen.shows[0], seen.clicks[0], seen.first_seen[0], seen.last_seen[0]
    assert found == (len(seconds), 0, min(seconds), max(seconds))
