"""A table of rows in this process's memory: a hash index from 64-bit ids to places in columns.

Open addressing with linear probing over a power of two of slots, at most half full. A slot holds a
place in the columns, or -1. Rows are not removed one by one. A deleted row is set to the state of a
row that never existed (no shows, zeros), which is the same to every reader. When a quarter of the
rows may be such, `compact` makes new columns without them. Readers of the old columns see one
moment, and `compact` returns where each row went, for readers that remember places.

The columns are arrays in a named tuple (`TableColumns`), so compiled kernels of other parts look
up, read and change rows without calling Python. Before a kernel adds rows, its caller has to
reserve room: `reserve`.

One thread changes a table while others read it without a lock:

- The arrays never shrink or move under a reader. A table that grows or is compacted fills new
  arrays (or a new index) first and then replaces the old ones in one step.
- A slot of the index is written after the id that it points to, and never points beyond the arrays.
- A reader can see a row that is half updated: by a log entry, between its values before and after;
  or when a bucket was copied again, with columns from before and after the copy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.pserver.intrinsics.row_prefetch import prefetch
from headrace.pserver.intrinsics.row_view import row_of
from headrace.pserver.rows.columns import (
    FEW,
    Arrays,
    Kinds,
    Memory,
    TableColumns,
    copy_first_rows,
    copy_rows,
    empty_slots,
    make_columns,
)
from headrace.pserver.rows.deltas import NEVER, Deletions, RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.runtime.kernels.numba_kernels import kernel

Ids = npt.NDArray[np.uint64]

Places = npt.NDArray[np.int64]

AHEAD = 32
"""Rows prefetched together: enough to overlap their cache misses, few enough to stay in cache."""
_NEVER = np.uint32(NEVER)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@kernel
def home(slots, row_id):  # type: ignore[no-untyped-def]
    """Return the slot at which the search for a row begins. For use inside kernels."""
    # Fibonacci hashing: the low bits of ids are their field, the high bits their bucket
    mixed = (row_id ^ (row_id >> np.uint64(29))) * _GOLDEN
    return np.int64((mixed >> np.uint64(20)) & np.uint64(slots.shape[0] - 1))


@kernel
def find(slots, ids, row_id):  # type: ignore[no-untyped-def]
    """Return the place of `row_id`, or -1. For use inside kernels."""
    slot = home(slots, row_id)
    while True:
        place = slots[slot]
        if place < 0 or ids[place] == row_id:
            return np.int64(place)
        slot = (slot + 1) & (slots.shape[0] - 1)


@kernel
def find_or_add(columns, row_id):  # type: ignore[no-untyped-def]
    """Return the place of `row_id`; adds an empty row if it is missing.

    For use inside kernels. The caller has reserved room.
    """
    slots, ids = columns.slots, columns.ids
    slot = home(slots, row_id)
    while True:
        place = slots[slot]
        if place < 0:
            break
        if ids[place] == row_id:
            return np.int64(place)
        slot = (slot + 1) & (slots.shape[0] - 1)
    place = np.int32(columns.count[0])
    columns.count[0] += 1
    ids[place] = row_id
    columns.first_seen[place] = _NEVER
    slots[slot] = place
    return np.int64(place)


@kernel
def fetch(slots, ids, wanted, begin, end):  # type: ignore[no-untyped-def]
    """Prefetch the memory of the search for the rows wanted[begin:end]. For use inside kernels.

    Without it, each search waits for its own cache miss; with it, the misses overlap.
    """
    for i in range(begin, end):
        prefetch(slots, home(slots, wanted[i]))
    for i in range(begin, end):
        # nearly always the wanted row
        prefetch(ids, max(slots[home(slots, wanted[i])], 0))


@kernel
def _find_many(slots, ids, wanted, places):  # type: ignore[no-untyped-def]
    for begin in range(0, wanted.shape[0], AHEAD):
        end = min(begin + AHEAD, wanted.shape[0])
        fetch(slots, ids, wanted, begin, end)
        for i in range(begin, end):
            places[i] = find(slots, ids, wanted[i])


@kernel
def _find_or_add_many(columns, wanted, places):  # type: ignore[no-untyped-def]
    for begin in range(0, wanted.shape[0], AHEAD):
        end = min(begin + AHEAD, wanted.shape[0])
        fetch(columns.slots, columns.ids, wanted, begin, end)
        for i in range(begin, end):
            places[i] = find_or_add(columns, wanted[i])


@kernel
def _index(slots, ids, count):  # type: ignore[no-untyped-def]
    for begin in range(0, count, AHEAD):
        end = min(begin + AHEAD, count)
        for place in range(begin, end):
            prefetch(slots, home(slots, ids[place]))
        for place in range(begin, end):
            slot = home(slots, ids[place])
            while slots[slot] >= 0:
                slot = (slot + 1) & (slots.shape[0] - 1)
            slots[slot] = np.int32(place)


@kernel
def _add(columns, places, shows, clicks, first_seen, last_seen, values):  # type: ignore[no-untyped-def]
    for i in range(places.shape[0]):
        place = places[i]
        columns.shows[place] += np.uint64(shows[i])
        columns.clicks[place] += np.uint64(clicks[i])
        columns.first_seen[place] = min(columns.first_seen[place], first_seen[i])
        columns.last_seen[place] = max(columns.last_seen[place], last_seen[i])
        row, gained = row_of(columns.values, place), row_of(values, i)
        for k in range(row.shape[0]):
            row[k] += gained[k]


class RowTable:
    """Rows of one model, all of `width` floats, found by id."""

    def __init__(
        self,
        width: int,
        memory: Memory | None = None,
        columns: TableColumns | None = None,
        extra: Kinds | None = None,
    ) -> None:
        """memory: allocates shared memory; None for this process's own. columns: existing columns.

        extra: further columns in each row, by name (see the attribute). Raises ValueError if they
        are combined with `memory` or `columns`.
        """
        if extra and columns is not None:
            raise ValueError(f"expected no columns beside existing ones, got {extra}")
        self.width = width
        self._memory, self._kinds = memory, extra or {}
        self.extra: Arrays = {}
        """Further columns in the table's rows, (capacity, ...) by name. A new row has zeros, and a
        moved row takes its values along. `clear` leaves them alone, so their owner keeps rows with
        values (`compact`). New arrays whenever `columns` are."""
        if columns is None:
            columns, self.extra = make_columns(FEW, width, memory, self._kinds)
        self.columns = columns
        self._cleared = 0  # since the columns were made; some of these rows may exist again

    def __len__(self) -> int:
        return int(self.columns.count[0])

    @property
    def changes(self) -> int:
        """Count of changes to rows: while it is the same, all rows are the same."""
        return int(self.columns.count[1])

    def changed(self) -> None:
        """Count a change, for kernels that change rows without this class."""
        self.columns.count[1] += 1

    @property
    def ids(self) -> Ids:
        """The ids of all rows, in the order they were added; shape (len,). A view."""
        return self.columns.ids[: len(self)]

    @property
    def capacity(self) -> int:
        """Rows that fit before arrays have to be made anew.

        Arrays that other classes keep by place have this length.
        """
        return int(min(self.columns.slots.shape[0] // 2, self.columns.ids.shape[0]))

    def reserve(self, more: int) -> TableColumns:
        """Make room for `more` new rows; return the columns, which may be new arrays."""
        needed = len(self) + more
        if needed > self.capacity:
            self._make_room(needed)
        return self.columns

    def _make_room(self, needed: int) -> None:
        """Make room for at least `needed` rows; the present columns stay readable."""
        old, extra, count, rows = (
            self.columns,
            self.extra,
            len(self),
            max(needed, 2 * self.capacity),
        )
        if needed > old.ids.shape[0]:
            new, extra = make_columns(rows, self.width, self._memory, self._kinds)
            new.count[:] = old.count
            copy_first_rows(old, new, count)
        else:
            new = old._replace(slots=empty_slots(rows))
        _index(new.slots, new.ids, count)
        self.columns, self.extra = new, extra

    def find(self, ids: Ids) -> Places:
        """Return the place of each id, -1 for missing rows; shape (n,)."""
        places = np.empty(ids.shape[0], np.int64)
        _find_many(self.columns.slots, self.columns.ids, ids, places)
        return places

    def find_or_add(self, ids: Ids) -> Places:
        """Return the place of each id, adding empty rows for missing ones; shape (n,)."""
        places = np.empty(ids.shape[0], np.int64)
        _find_or_add_many(self.reserve(ids.shape[0]), ids, places)
        return places

    def add(self, deltas: RowDeltas) -> Places:
        """Add deltas to their rows, in the given order; return the places of the rows."""
        places = self.find_or_add(deltas.ids)
        _add(self.columns, places, *deltas[1:])
        self.changed()
        return places

    def put(self, rows: FoldedRows) -> Places:
        """Set rows to these values; return their places. Ids are unique."""
        places = self.find_or_add(rows.ids)
        self.columns.shows[places] = rows.shows
        self.columns.clicks[places] = rows.clicks
        self.columns.first_seen[places] = rows.first_seen
        self.columns.last_seen[places] = rows.last_seen
        self.columns.values[places] = rows.values
        self.changed()
        return places

    def everything(self) -> FoldedRows:
        """Return all rows in the order they were added, as views."""
        return FoldedRows._make(column[: len(self)] for column in self.columns[2:])

    def take(self, places: Places) -> FoldedRows:
        """Return copies of the rows at these places."""
        return FoldedRows._make(column[places] for column in self.columns[2:])

    def remove(self, deletions: Deletions) -> Places:
        """Clear the rows that were not seen after their deletion time; return their places."""
        places = self.find(deletions.ids)
        known = places >= 0
        places, until = places[known], deletions.last_seen[known]
        places = places[self.columns.last_seen[places] <= until]
        self.clear(places)
        return places

    @property
    def sparse(self) -> bool:
        """Whether a quarter of the rows may have been cleared."""
        return self._cleared >= max(FEW, len(self) // 4)

    def compact(self, keep: npt.NDArray[np.bool_] | None = None) -> Places:
        """Drop the rows that equal rows that never existed; return the new place of each row.

        keep: (len,) or more, True for rows that stay in any case. Returns (len,) new places, -1 for
        dropped rows. The columns are new arrays.
        """
        count = len(self)
        stays = self.everything().exist()
        if keep is not None:
            stays |= keep[:count]
        kept = np.flatnonzero(stays)
        capacity = max(FEW, kept.shape[0] + kept.shape[0] // 4)
        new, extra = make_columns(capacity, self.width, self._memory, self._kinds)
        new.count[:] = kept.shape[0], self.changes
        copy_rows(self.columns, new, kept)
        _index(new.slots, new.ids, kept.shape[0])
        self.columns, self.extra = new, extra
        self._cleared = 0
        moved = np.full(count, -1, np.int64)
        moved[kept] = np.arange(kept.shape[0])
        return moved

    def clear(self, places: Places) -> None:
        """Set rows to the state of a row that never existed."""
        self._cleared += places.shape[0]
        self.columns.shows[places] = 0
        self.columns.clicks[places] = 0
        self.columns.first_seen[places] = NEVER
        self.columns.last_seen[places] = 0
        self.columns.values[places] = 0.0
        self.changed()
