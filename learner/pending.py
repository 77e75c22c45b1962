"""What the learner's rows gained and the parameter server has not yet acknowledged.

The learner's view of a row is what its replica holds plus what is in flight plus what is pending.
The pending part lies in columns parallel to the view's, so that a kernel which learns adds to both
at the same place, and in a list of the places touched, so that a push costs what it carries and not
what the table holds.

The view is kept by adding; float additions in another order round otherwise. So whenever the
replica folds a row, `refresh` recomputes the view's row from the three parts: the view can never
drift from what the parameter server holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest.compiled import kernel
from pserver.gains import NEVER, Gains
from pserver.table import find, lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from pserver.store import Shape
    from pserver.table import RowTable

_NEVER = np.uint32(NEVER)


class Gaining(NamedTuple):
    """Pending gains, parallel to the columns of the view (same capacity, same places)."""

    touched: npt.NDArray[np.bool_]  # (capacity,)
    order: npt.NDArray[np.int64]  # (capacity,) places touched since the last push, as they came
    count: npt.NDArray[np.int64]  # type: ignore[assignment]  # (1,) how many of `order` count
    shows: npt.NDArray[np.uint32]  # (capacity,)
    clicks: npt.NDArray[np.uint32]  # (capacity,)
    first_seen: npt.NDArray[np.uint32]  # (capacity,) of what is touched; else without meaning
    last_seen: npt.NDArray[np.uint32]  # (capacity,)
    values: npt.NDArray[np.float32]  # (capacity, width)


@kernel
def _refresh(view, folded, gaining, ids, view_places):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        to = view_places[i]
        view.shows[to] = gaining.shows[to]
        view.clicks[to] = gaining.clicks[to]
        view.first_seen[to] = gaining.first_seen[to] if gaining.touched[to] else _NEVER
        view.last_seen[to] = gaining.last_seen[to]
        place = find(folded.slots, folded.ids, ids[i])
        if place < 0:
            for k in range(view.values.shape[1]):
                view.values[to, k] = gaining.values[to, k]
            continue
        view.shows[to] += folded.shows[place]
        view.clicks[to] += folded.clicks[place]
        view.first_seen[to] = min(folded.first_seen[place], view.first_seen[to])
        view.last_seen[to] = max(folded.last_seen[place], view.last_seen[to])
        for k in range(view.values.shape[1]):
            view.values[to, k] = folded.values[place, k] + gaining.values[to, k]


class Pending:
    """The pending gains of a view's rows, taken out bucket by bucket."""

    def __init__(self, view: RowTable, shape: Shape) -> None:
        self._view = view
        self._shape = shape
        self.gaining = _make(view.columns.ids.shape[0], view.width)

    def __len__(self) -> int:
        return int(self.gaining.count[0])

    def reserve(self) -> Gaining:
        """Grow to the view's capacity; return the columns, which may be new arrays."""
        capacity = self._view.columns.ids.shape[0]
        if capacity > self.gaining.touched.shape[0]:
            grown = _make(capacity, self._view.width)
            before = self.gaining.touched.shape[0]
            for name in Gaining._fields:
                if name != "count":
                    getattr(grown, name)[:before] = getattr(self.gaining, name)
            grown.count[0] = self.gaining.count[0]
            self.gaining = grown
        return self.gaining

    def largest(self) -> float:
        """Return the largest float that any row gained, whatever its sign; NaN if any is none."""
        places = self.gaining.order[: len(self)]
        return float(np.abs(self.gaining.values[places]).max(initial=0.0))

    def compact(self) -> None:
        """Drop the view's rows that are as if they had never existed and have nothing pending."""
        before, count = self.reserve(), len(self)
        moved = self._view.compact(keep=before.touched)
        kept = np.flatnonzero(moved >= 0)
        self.gaining = _make(self._view.columns.ids.shape[0], self._view.width)
        for name in Gaining._fields:
            if name not in ("count", "order"):
                getattr(self.gaining, name)[moved[kept]] = getattr(before, name)[kept]
        self.gaining.order[:count] = moved[before.order[:count]]
        self.gaining.count[0] = count

    def take(self, buckets: Sequence[int]) -> dict[int, Gains]:
        """Take out what these buckets' rows gained; every bucket asked for is in the answer."""
        gaining, count = self.gaining, len(self)
        places = gaining.order[:count]
        row_buckets = self._shape.bucket_of(self._view.columns.ids[places])
        wanted = np.zeros(self._shape.buckets, np.bool_)
        wanted[list(buckets)] = True
        chosen = wanted[row_buckets]
        taken = places[chosen]
        taken = taken[np.argsort(self._view.columns.ids[taken])]  # ids' high bits are the bucket
        left = places[~chosen]
        gaining.order[: left.shape[0]] = left
        gaining.count[0] = left.shape[0]
        gains = Gains(
            self._view.columns.ids[taken],
            gaining.shows[taken],
            gaining.clicks[taken],
            gaining.first_seen[taken],
            gaining.last_seen[taken],
            gaining.values[taken],
        )
        _clear(gaining, taken)
        wanted_buckets = np.asarray(sorted(buckets), np.int64)
        taken_buckets = self._shape.bucket_of(gains.ids)
        starts = np.searchsorted(taken_buckets, wanted_buckets, "left")
        stops = np.searchsorted(taken_buckets, wanted_buckets, "right")
        return {
            int(bucket): gains.chosen(slice(start, stop))
            for bucket, start, stop in zip(wanted_buckets, starts, stops, strict=True)
        }

    def refresh(self, folded: RowTable, ids: npt.NDArray[np.uint64], flying: Gains | None) -> None:
        """Set the view's rows to folded + in flight + pending; `flying` is their bucket's."""
        places = self._view.find_or_add(ids)
        gaining = self.reserve()
        _refresh(self._view.columns, folded.columns, gaining, ids, places)
        if flying is not None:
            self._view.add(flying.chosen(np.isin(flying.ids, ids)))


def _clear(gaining: Gaining, places: npt.NDArray[np.int64]) -> None:
    gaining.touched[places] = False
    gaining.shows[places] = 0
    gaining.clicks[places] = 0
    gaining.last_seen[places] = 0
    gaining.values[places] = 0.0


def _make(capacity: int, width: int) -> Gaining:
    columns = lay_out(
        capacity,
        {
            "shows": (np.uint32,),
            "clicks": (np.uint32,),
            "first_seen": (np.uint32,),
            "last_seen": (np.uint32,),
            "touched": (np.bool_,),
            "values": (np.float32, (width,)),
        },
        multiple=32,
    )
    return Gaining(
        order=np.zeros(capacity, np.int64),
        count=np.zeros(1, np.int64),
        **columns,
    )
