"""The tail of the logs: entries that are not yet trimmed, found by the ids of the rows they change.

One arena serves all buckets. It has an item for each row of each entry, in the order of arrival,
and a hash index from an id to its newest item. Each item names the one before it of the same row.
To bring a row from one version to another, a walk goes back to the first item that the row lacks,
and then adds the items from there on. That is the log's order, so float additions give exactly the
bits of a replica.

Items of forgotten entries (trimmed ones) are dead: no walk goes that far back. When they outnumber
the live items, the live ones move to a new arena.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.rows.deltas import NEVER, Deletions, RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.rows.table import home
from headrace.pserver.store import Shape
from headrace.runtime.kernels.numba_kernels import counted_kernel

Ids = npt.NDArray[np.uint64]
Versions = npt.NDArray[np.uint64]

_SMALLEST = 1024
_GAINS, _DELETION = np.uint32(0), np.uint32(1)
_ITEM = np.dtype(
    [
        ("id", np.uint64),
        ("version", np.uint64),  # of its entry
        ("before", np.int32),  # index of the same row's item before it, or -1
        ("kind", np.uint32),
        ("shows", np.uint32),
        ("clicks", np.uint32),
        ("first_seen", np.uint32),
        ("last_seen", np.uint32),  # a deletion leaves rows that were seen later
    ]
)


class TailArena(NamedTuple):
    """The arrays. The first `count[0]` items are in use."""

    slots: npt.NDArray[np.int32]  # (2^k,) the newest item of an id, or -1
    count: npt.NDArray[np.int64]  # type: ignore[assignment]  # (1,)
    items: npt.NDArray[np.void]  # (capacity,) of _ITEM
    values: npt.NDArray[np.float32]  # (capacity, width)


@counted_kernel
def _slot_of(arena, row_id):  # type: ignore[no-untyped-def]
    """Return the slot of an id: that of its newest item, or the free slot for it."""
    slots, items = arena.slots, arena.items
    slot = home(slots, row_id)
    while slots[slot] >= 0 and items[slots[slot]].id != row_id:
        slot = (slot + 1) & (slots.shape[0] - 1)
    return slot


@counted_kernel
def _push(arena, row_id):  # type: ignore[no-untyped-def]
    """Return the index of a new item of this id, linked to those before it."""
    slot = _slot_of(arena, row_id)
    index = arena.count[0]
    arena.count[0] += 1
    arena.items[index].id = row_id
    arena.items[index].before = arena.slots[slot]
    arena.slots[slot] = np.int32(index)
    return index


@counted_kernel
def _append_gains(arena, version, ids, shows, clicks, first_seen, last_seen, values):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        index = _push(arena, ids[i])
        item = arena.items[index]
        item.version = version
        item.kind = _GAINS
        item.shows, item.clicks = shows[i], clicks[i]
        item.first_seen, item.last_seen = first_seen[i], last_seen[i]
        for k in range(values.shape[1]):
            arena.values[index, k] = values[i, k]


@counted_kernel
def _append_deletions(arena, version, ids, last_seen):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        item = arena.items[_push(arena, ids[i])]
        item.version = version
        item.kind = _DELETION
        item.last_seen = last_seen[i]


@counted_kernel
def _move_living(old, new, buckets, floors):  # type: ignore[no-untyped-def]
    for i in range(old.count[0]):
        if old.items[i].version > floors[buckets[i]]:
            index = _push(new, old.items[i].id)
            before = new.items[index].before
            new.items[index] = old.items[i]
            new.items[index].before = before
            new.values[index] = old.values[i]


@counted_kernel
def _bring(arena, path, versions, rows):  # type: ignore[no-untyped-def]
    """Bring each row to the arena's version; `path` has room for the longest walk."""
    items = arena.items
    ids, shows, clicks, first_seen, last_seen, values = rows
    for i in range(ids.shape[0]):
        index = arena.slots[_slot_of(arena, ids[i])]
        steps = 0
        while index >= 0 and items[index].version > versions[i]:
            path[steps] = index
            steps += 1
            index = items[index].before
        for step in range(steps - 1, -1, -1):
            item = items[path[step]]
            if item.kind == _GAINS:
                shows[i] += np.uint64(item.shows)
                clicks[i] += np.uint64(item.clicks)
                first_seen[i] = min(first_seen[i], item.first_seen)
                last_seen[i] = max(last_seen[i], item.last_seen)
                for k in range(values.shape[1]):
                    values[i, k] += arena.values[path[step], k]
            elif last_seen[i] <= item.last_seen:
                shows[i], clicks[i], first_seen[i], last_seen[i] = 0, 0, NEVER, 0
                values[i, :] = 0.0


class _TailEntry(NamedTuple):
    version: int
    rows: int


class LogTail:
    """The entries that the logs of a model's buckets still hold."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._arena = _make(_SMALLEST, shape.width)
        self._entries: list[deque[_TailEntry]] = [deque() for _ in range(shape.buckets)]
        self._living = 0
        self.floors: Versions = np.zeros(shape.buckets, np.uint64)
        """(buckets,) version up to which each bucket's entries are forgotten."""

    def __len__(self) -> int:
        """Rows of all entries together."""
        return self._living

    @property
    def size_bytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in self._arena)

    def append(self, bucket: int, version: int, content: RowDeltas | Deletions) -> None:
        """Append the next entry of a bucket."""
        rows = content.ids.shape[0]
        self._reserve(rows)
        if isinstance(content, Deletions):
            _append_deletions(self._arena, np.uint64(version), *content)
        else:
            _append_gains(self._arena, np.uint64(version), *content)
        self._entries[bucket].append(_TailEntry(version, rows))
        self._living += rows

    def forget(self, bucket: int, through: int) -> None:
        """Forget a bucket's entries up to and including a version."""
        self.floors[bucket] = through
        entries = self._entries[bucket]
        while entries and entries[0].version <= through:
            self._living -= entries.popleft().rows
        if int(self._arena.count[0]) - self._living > max(_SMALLEST, self._living):
            self._move(0)

    def begin(self, bucket: int, floor: int) -> None:
        """Begin a bucket that is new, or was dropped, with entries beyond `floor`."""
        self.floors[bucket] = floor

    def drop(self, buckets: Collection[int]) -> None:
        """Forget these buckets and all their entries."""
        for bucket in buckets:
            self.floors[bucket] = np.iinfo(np.uint64).max
            self._living -= sum(entry.rows for entry in self._entries[bucket])
            self._entries[bucket].clear()
        self._move(0)  # dead items could come to life by the versions of another history

    def bring(self, rows: FoldedRows, versions: Versions) -> None:
        """Add to rows, in place, the entries beyond their versions; ids may repeat.

        versions: (n,). No entry beyond them that changes the row may have been forgotten.
        """
        longest = max(len(entries) for entries in self._entries)
        path = np.empty(longest, np.int64)
        # `path` has no room for dead items, and they are not needed
        floors = self.floors[self._shape.bucket_of(rows.ids)]
        _bring(self._arena, path, np.maximum(versions, floors), rows)

    def _reserve(self, more: int) -> None:
        if int(self._arena.count[0]) + more > self._arena.items.shape[0]:
            self._move(more)

    def _move(self, more: int) -> None:
        """Move the live items to a new arena, with room for `more` and half as many again."""
        old = self._arena
        ids = np.ascontiguousarray(old.items["id"][: int(old.count[0])])
        needed = self._living + more
        self._arena = _make(max(_SMALLEST, needed + needed // 2), self._shape.width)
        _move_living(old, self._arena, self._shape.bucket_of(ids), self.floors)


def _make(capacity: int, width: int) -> TailArena:
    if capacity > np.iinfo(np.int32).max:
        raise MemoryError(f"expected keepers to trim the logs, got {capacity} rows in them")
    slots = 2
    while slots < 2 * capacity:
        slots *= 2
    return TailArena(
        np.full(slots, -1, np.int32),
        np.zeros(1, np.int64),
        np.zeros(capacity, _ITEM),
        np.zeros((capacity, width), np.float32),
    )
