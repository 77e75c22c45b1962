"""Pending deltas of a learner's rows that the parameter server has not yet acknowledged.

The learner's view of a row is what its replica holds, plus what is in flight, plus what is pending.
The pending part is stored in the view's rows, beside the values seen, so that a kernel adds to both
in one walk. A list of the places touched makes a push cost what it carries, not what the table
holds.

The view is kept by adding, and float additions in another order round differently. So whenever the
replica folds a row, `refresh` recomputes the view's row from the three parts: the view cannot drift
from what the parameter server holds.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.kernels.row_lookup import bucket_at, shift_of
from headrace.pserver.intrinsics.row_prefetch import prefetch, prefetch_row
from headrace.pserver.intrinsics.row_view import row_of
from headrace.pserver.rows.columns import Kinds
from headrace.pserver.rows.deltas import NEVER, RowDeltas
from headrace.pserver.rows.table import AHEAD, Places, RowTable, fetch, find
from headrace.pserver.store import Shape
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_NEVER = np.uint32(NEVER)
_ONE = np.uint32(1)
_WITHOUT_SIGN = np.uint32(0x7FFFFFFF)
_COUNTERS: Kinds = {
    "shows": (np.uint32,),
    "clicks": (np.uint32,),
    "since": (np.uint32,),
    "last_seen": (np.uint32,),
}
_PREFIX = "pending "
"""Prefix of the names of pending columns: some equal the names of the rows' own columns."""


class PendingColumns(NamedTuple):
    """Pending deltas, at the same places as the view's rows; a row without any has zeros."""

    order: npt.NDArray[np.int64]  # (capacity or more,) touched since the last push, as they came
    count: npt.NDArray[np.int64]  # type: ignore[assignment]  # (1,) how many of `order` count
    shows: npt.NDArray[np.uint32]  # (capacity,)
    clicks: npt.NDArray[np.uint32]  # (capacity,)
    since: npt.NDArray[np.uint32]  # (capacity,) seconds from when first seen until `NEVER`
    last_seen: npt.NDArray[np.uint32]  # (capacity,)
    values: npt.NDArray[np.float32]  # (capacity, width)


def view_of(width: int) -> RowTable:
    """Return an empty view whose rows have room for their pending deltas."""
    extra = _COUNTERS | {"values": (np.float32, (width,))}
    return RowTable(width, extra={_PREFIX + name: kind for name, kind in extra.items()})


@inlined
def since(second):  # type: ignore[no-untyped-def]
    """Return the seconds from this one until `NEVER`: never 0, which means that nothing is pending.

    The earlier of two seconds has the larger result.
    """
    return max(_NEVER - np.uint32(second), _ONE)


@kernel
def _refresh(view, folded, gaining, ids, view_places):  # type: ignore[no-untyped-def]
    for begin in range(0, ids.shape[0], AHEAD):
        end = min(begin + AHEAD, ids.shape[0])
        fetch(folded.slots, folded.ids, ids, begin, end)
        for i in range(begin, end):
            prefetch_row(view.values, view_places[i])
            prefetch_row(gaining.values, view_places[i])
        for i in range(begin, end):
            place = find(folded.slots, folded.ids, ids[i])
            _refresh_one(view, folded, gaining, place, view_places[i])


@inlined
def _refresh_one(view, folded, gaining, place, to):  # type: ignore[no-untyped-def]
    view.shows[to] = gaining.shows[to]
    view.clicks[to] = gaining.clicks[to]
    view.first_seen[to] = _NEVER - gaining.since[to]
    view.last_seen[to] = gaining.last_seen[to]
    seen, pending = row_of(view.values, to), row_of(gaining.values, to)
    if place < 0:
        for k in range(seen.shape[0]):
            seen[k] = pending[k]
        return
    view.shows[to] += folded.shows[place]
    view.clicks[to] += folded.clicks[place]
    view.first_seen[to] = min(folded.first_seen[place], view.first_seen[to])
    view.last_seen[to] = max(folded.last_seen[place], view.last_seen[to])
    row = row_of(folded.values, place)
    for k in range(seen.shape[0]):
        seen[k] = row[k] + pending[k]


@kernel
def _largest(order, count, bits):  # type: ignore[no-untyped-def]
    """Return the largest of the floats with these bits, sign aside, as bits; NaN is the largest."""
    # without its sign a float is in the order of its bits, infinity next to last
    largest = np.uint32(0)
    for i in range(count):
        prefetch_row(bits, order[min(i + AHEAD, count - 1)])
        row = row_of(bits, order[i])
        for k in range(row.shape[0]):
            largest = max(largest, np.uint32(row[k] & _WITHOUT_SIGN))
    return largest


@kernel
def _deal(view_ids, order, of_row, counts):  # type: ignore[no-untyped-def]
    """Write the bucket of each place of `order`, and count the rows of each."""
    last, shift = order.shape[0] - 1, shift_of(counts.shape[0])
    for i in range(order.shape[0]):
        prefetch(view_ids, order[min(i + AHEAD, last)])
        bucket = np.int64(bucket_at(view_ids[order[i]], shift))
        of_row[i] = bucket
        counts[bucket] += 1


@kernel
def _take_out(view_ids, gaining, order, of_row, next_of, deltas):  # type: ignore[no-untyped-def]
    """Move what is pending to `deltas`, and leave nothing; return how many places stay in `order`.

    next_of: (buckets,) where the bucket's next row goes, -1 if it is not taken out.
    """
    left, last = 0, order.shape[0] - 1
    for k in range(order.shape[0]):
        ahead = order[min(k + AHEAD, last)]
        prefetch(view_ids, ahead)
        prefetch_row(gaining.values, ahead)
        place, i = order[k], next_of[of_row[k]]
        if i < 0:
            order[left] = place
            left += 1
            continue
        next_of[of_row[k]] += 1
        deltas.ids[i] = view_ids[place]
        deltas.shows[i] = gaining.shows[place]
        deltas.clicks[i] = gaining.clicks[place]
        deltas.first_seen[i] = _NEVER - gaining.since[place]
        deltas.last_seen[i] = gaining.last_seen[place]
        gaining.shows[place] = 0
        gaining.clicks[place] = 0
        gaining.since[place] = 0
        gaining.last_seen[place] = 0
        row, pending = row_of(deltas.values, i), row_of(gaining.values, place)
        for f in range(row.shape[0]):
            row[f] = pending[f]
            pending[f] = 0.0
    return left


class PendingDeltas:
    """The pending deltas of a view's rows, taken out bucket by bucket."""

    def __init__(self, view: RowTable, shape: Shape) -> None:
        """`view`: made by `view_of`."""
        self._view = view
        self._shape = shape
        self._extra = view.extra
        self.gaining = self._gaining(np.empty(view.capacity, np.int64), np.zeros(1, np.int64))

    def __len__(self) -> int:
        return int(self.gaining.count[0])

    def reserve(self) -> PendingColumns:
        """Have room for the rows that the view has room for; return the columns as they are now.

        Call it again after the view has grown: the columns returned before may be the old ones.
        """
        order, count = self.gaining.order, len(self)
        if self._view.capacity > order.shape[0]:
            order = np.empty(self._view.capacity, np.int64)
            order[:count] = self.gaining.order[:count]
        if order is not self.gaining.order or self._extra is not self._view.extra:
            self.gaining = self._gaining(order, self.gaining.count)
        return self.gaining

    def _gaining(self, order: Places, count: npt.NDArray[np.int64]) -> PendingColumns:
        self._extra = extra = self._view.extra
        columns = {name.removeprefix(_PREFIX): column for name, column in extra.items()}
        return PendingColumns(order=order, count=count, **columns)

    def largest(self) -> float:
        """Return the largest float that any row gained, sign aside; NaN if any is NaN."""
        gaining = self.reserve()
        bits = _largest(gaining.order, len(self), gaining.values.view(np.uint32))
        return float(np.uint32(bits).view(np.float32))

    def compact(self, keep: npt.NDArray[np.bool_] | None = None) -> Places:
        """Drop the view's rows that equal missing ones and have nothing pending.

        `keep` and what is returned are RowTable.compact's.
        """
        stays, order = self.touched(), self.reserve().order[: len(self)]
        moved = self._view.compact(stays if keep is None else stays | keep[: stays.shape[0]])
        order[:] = moved[order]
        self.reserve()
        return moved

    def touched(self) -> npt.NDArray[np.bool_]:
        """Return which of the view's rows have something pending; shape (len(view),)."""
        return self.reserve().since[: len(self._view)] > 0

    def take(self, buckets: Sequence[int]) -> dict[int, RowDeltas]:
        """Take out what these buckets' rows gained; every bucket asked for is in the answer.

        Rows are in the order in which they were first touched.
        """
        gaining, ids = self.reserve(), self._view.columns.ids
        order = gaining.order[: len(self)]
        of_row = np.empty(order.shape[0], np.uint16)
        counts = np.zeros(self._shape.buckets, np.int64)
        _deal(ids, order, of_row, counts)
        taken = sorted(buckets)
        ends = dict(zip(taken, np.cumsum(counts[taken]).tolist(), strict=True))
        begins = {bucket: end - int(counts[bucket]) for bucket, end in ends.items()}
        next_of = np.full(counts.shape[0], -1, np.int64)
        next_of[taken] = list(begins.values())
        deltas = _empty_deltas(max(ends.values(), default=0), self._view.width)
        gaining.count[0] = _take_out(ids, gaining, order, of_row, next_of, deltas)
        return {bucket: deltas.chosen(slice(begins[bucket], ends[bucket])) for bucket in taken}

    def refresh(
        self, folded: RowTable, ids: npt.NDArray[np.uint64], flying: RowDeltas | None
    ) -> None:
        """Set the view's rows to folded + in flight + pending; `flying` is their bucket's."""
        places = self._view.find_or_add(ids)
        gaining = self.reserve()
        _refresh(self._view.columns, folded.columns, gaining, ids, places)
        self._view.changed()
        if flying is not None:
            self._view.add(flying.chosen(np.isin(flying.ids, ids)))


def _empty_deltas(count: int, width: int) -> RowDeltas:
    shows, clicks, first_seen, last_seen = (np.empty(count, np.uint32) for _ in range(4))
    values = np.empty((count, width), np.float32)
    return RowDeltas(np.empty(count, np.uint64), shows, clicks, first_seen, last_seen, values)
