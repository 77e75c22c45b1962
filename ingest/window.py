"""What the joiner holds of one partition: impressions of the last while, and clicks without one.

Everything is first in, first out, so everything is a ring of columns, and an entry is named by its
sequence number, which only grows. Four rings:

- entries: every impression accepted within the last two windows, as hash and clocks, with a hash
  index: it answers "is this click's impression known" and "was this impression there before".
- open rows: the features of the entries whose window is open, under the same sequence numbers.
  Bytes of varying length (ids as strings, slices, bags) lie in an arena that is a ring of its own.
- waiting: clicks that came before their impression, chained by hash.
- repeats: impressions older than that whose id still comes again and again (a producer that sends
  "undefined" for an id). They must be known as duplicates, yet not hold up the ring of entries.

An impression is known by the XXH64 of its id: among the millions pending at once, two that share
one are not met in practice (for a hundred million, once in some four thousand times).

The rings grow (`Held.reserve`) before a kernel runs, which then cannot fail for lack of room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ingest.compiled import kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ingest.chunks import Rows

    Longs = npt.NDArray[np.int64]

_SMALLEST = 1024
_SMALLEST_ARENA = 1 << 16


class Entries(NamedTuple):
    """Accepted impressions."""

    slots: npt.NDArray[np.int32]  # (2 * capacity,) place in the ring, or -1
    hashes: npt.NDArray[np.uint64]  # (capacity,)
    clocks: Longs  # (capacity,) clock of impressions when it was accepted
    lasts: Longs  # (capacity,) the same when it, or a duplicate of it, was last seen


class OpenRows(NamedTuple):
    """What examples need of entries whose window is open."""

    event_ms: Longs  # (capacity,)
    append_ms: Longs  # (capacity,)
    clicked: npt.NDArray[np.uint8]  # (capacity,)
    ids: npt.NDArray[np.uint64]  # (capacity, singles)
    numbers: npt.NDArray[np.float32]  # (capacity, numbers)
    lengths: npt.NDArray[np.int32]  # (capacity, strings + bags)
    starts: Longs  # (capacity,) in the arena, counted on and on
    arena: npt.NDArray[np.uint8]  # (arena capacity,)


class Repeats(NamedTuple):
    """Impressions that left the entries and are still repeated."""

    slots: npt.NDArray[np.int32]  # (2 * capacity,) place in the ring, or -1
    hashes: npt.NDArray[np.uint64]  # (capacity,)
    clocks: Longs  # (capacity,) clock of impressions when it was put here
    lasts: Longs  # (capacity,) the same when it was last seen


class Waiting(NamedTuple):
    """Clicks without an impression, as yet."""

    slots: npt.NDArray[np.int32]  # (2 * capacity,) place of the oldest of its hash, or -1
    hashes: npt.NDArray[np.uint64]  # (capacity,)
    clocks: Longs  # (capacity,) clock of clicks when it was taken
    event_ms: Longs  # (capacity,)
    append_ms: Longs  # (capacity,)
    settled: npt.NDArray[np.uint8]  # (capacity,) its impression came
    following: Longs  # (capacity,) sequence number of the next of the same hash, or -1
    newest: Longs  # (capacity,) on the oldest of a hash: sequence number of the newest


class Ends(NamedTuple):
    """Where the rings begin and end, as arrays of one: kernels write them."""

    entry_head: Longs
    entry_tail: Longs
    open_head: Longs
    """Open rows end where entries do."""
    arena_tail: Longs
    waiting_head: Longs
    waiting_tail: Longs
    repeat_head: Longs
    repeat_tail: Longs
    repeated: Longs
    """How many of the entries were seen again: so many may yet become repeats."""


class Rings(NamedTuple):
    """All that is held of one partition, as kernels take it."""

    entries: Entries
    open: OpenRows
    waiting: Waiting
    repeats: Repeats
    ends: Ends


class Held:
    """The rings of one partition, growing as needed."""

    def __init__(self, singles: int, numbers: int, strings_and_bags: int) -> None:
        self._widths = singles, numbers, strings_and_bags
        self.entries = _make_entries(_SMALLEST)
        self.open = _make_open(_SMALLEST, _SMALLEST_ARENA, *self._widths)
        self.waiting = _make_waiting(_SMALLEST)
        self.repeats = Repeats(*_make_entries(_SMALLEST))
        self.ends = Ends(*(np.zeros(1, np.int64) for _ in Ends._fields))

    @property
    def rings(self) -> Rings:
        """The arrays as they are now; `reserve` may replace them."""
        return Rings(self.entries, self.open, self.waiting, self.repeats, self.ends)

    @property
    def pending(self) -> int:
        """Impressions whose window is open."""
        return int(self.ends.entry_tail[0] - self.ends.open_head[0])

    @property
    def known(self) -> int:
        """Impressions that a click or a duplicate would still be recognized by."""
        return int(self.ends.entry_tail[0] - self.ends.entry_head[0])

    @property
    def waiting_clicks(self) -> int:
        """Clicks whose impression has not come."""
        head, tail = int(self.ends.waiting_head[0]), int(self.ends.waiting_tail[0])
        places = np.arange(head, tail) & (self.waiting.hashes.shape[0] - 1)
        return tail - head - int(self.waiting.settled[places].sum())

    @property
    def allocated_bytes(self) -> int:
        """Memory of all rings, used or not."""
        rings = (*self.entries, *self.open, *self.waiting, *self.repeats)
        return sum(int(array.nbytes) for array in rings)

    def reserve(self, rows: Rows, begin: int, end: int, clicks: int) -> None:
        """Make room for events `begin` to `end` of `rows`, and for `clicks` clicks."""
        more, ends = end - begin, self.ends
        if self.known + more > self.entries.hashes.shape[0]:
            needed = self.known + more
            self.entries = _grown_entries(self.entries, ends.entry_head, ends.entry_tail, needed)
        size = int(rows.starts[end] - rows.starts[begin])
        largest = int(np.diff(rows.starts[begin : end + 1]).max()) if more else 0
        # a run never wraps: what it would leave unused at the end is less than the largest run
        needed = self._arena_used() + size + largest
        capacity, arena = self.open.event_ms.shape[0], self.open.arena.shape[0]
        if self.pending + more > capacity or needed > arena:
            self.open = _grown_open(self.open, ends, self.pending + more, needed, self._widths)
        held = int(ends.waiting_tail[0] - ends.waiting_head[0])
        if held + clicks > self.waiting.hashes.shape[0]:
            self.waiting = _grown_waiting(self.waiting, ends, held + clicks)
        repeats = int(ends.repeat_tail[0] - ends.repeat_head[0] + ends.repeated[0]) + more
        if repeats > self.repeats.hashes.shape[0]:
            old = Entries(*self.repeats)
            self.repeats = Repeats(
                *_grown_entries(old, ends.repeat_head, ends.repeat_tail, repeats)
            )

    def _arena_used(self) -> int:
        if not self.pending:
            return 0
        head = int(self.ends.open_head[0]) & (self.open.starts.shape[0] - 1)
        return int(self.ends.arena_tail[0] - self.open.starts[head])


@kernel
def find_slot(slots, hashes, wanted):  # type: ignore[no-untyped-def]
    """Return the slot that holds a place with this hash, or the empty one where it would go."""
    slot = np.int64(wanted & np.uint64(slots.shape[0] - 1))
    while slots[slot] >= 0 and hashes[slots[slot]] != wanted:
        slot = (slot + 1) & (slots.shape[0] - 1)
    return slot


@kernel
def clear_slot(slots, hashes, slot):  # type: ignore[no-untyped-def]
    """Empty a slot, moving back those that probed past it (Knuth, 6.4, Algorithm R)."""
    mask = slots.shape[0] - 1
    probe = slot
    while True:
        slots[slot] = -1
        while True:
            probe = (probe + 1) & mask
            if slots[probe] < 0:
                return
            home = np.int64(hashes[slots[probe]] & np.uint64(mask))
            # stays where its home lies cyclically after the hole
            if ((probe - home) & mask) >= ((probe - slot) & mask):
                break
        slots[slot] = slots[probe]
        slot = probe


@kernel
def hold_row(held, ends, rows, i, event_ms, append_ms):  # type: ignore[no-untyped-def]
    """Copy the features of event `i` of `rows` to the open row of the newest entry."""
    place = ends.entry_tail[0] & (held.starts.shape[0] - 1)
    held.event_ms[place] = event_ms
    held.append_ms[place] = append_ms
    held.clicked[place] = 0
    for j in range(rows.ids.shape[1]):
        held.ids[place, j] = rows.ids[i, j]
    for j in range(rows.numbers.shape[1]):
        held.numbers[place, j] = rows.numbers[i, j]
    for j in range(rows.lengths.shape[1]):
        held.lengths[place, j] = rows.lengths[i, j]
    size = rows.starts[i + 1] - rows.starts[i]
    capacity = held.arena.shape[0]
    start = ends.arena_tail[0]
    if (start & (capacity - 1)) + size > capacity:
        start = (start // capacity + 1) * capacity
    at = start & (capacity - 1)
    for k in range(size):
        held.arena[at + k] = rows.data[rows.starts[i] + k]
    held.starts[place] = start
    ends.arena_tail[0] = start + size


@kernel
def hold_click(waiting, ends, wanted, clock, event_ms, append_ms):  # type: ignore[no-untyped-def]
    """Add a click to those waiting, after the others of its hash."""
    mask = waiting.hashes.shape[0] - 1
    sequence = ends.waiting_tail[0]
    place = sequence & mask
    waiting.hashes[place] = wanted
    waiting.clocks[place] = clock
    waiting.event_ms[place] = event_ms
    waiting.append_ms[place] = append_ms
    waiting.settled[place] = 0
    waiting.following[place] = -1
    slot = find_slot(waiting.slots, waiting.hashes, wanted)
    oldest = waiting.slots[slot]
    if oldest < 0:
        waiting.slots[slot] = np.int32(place)
        waiting.newest[place] = sequence
    else:
        waiting.following[waiting.newest[oldest] & mask] = sequence
        waiting.newest[oldest] = sequence
    ends.waiting_tail[0] = sequence + 1


@kernel
def drop_oldest_click(waiting, ends):  # type: ignore[no-untyped-def]
    """Remove the click that has waited longest."""
    mask = waiting.hashes.shape[0] - 1
    place = ends.waiting_head[0] & mask
    slot = find_slot(waiting.slots, waiting.hashes, waiting.hashes[place])
    following = waiting.following[place]
    if following < 0:
        clear_slot(waiting.slots, waiting.hashes, slot)
    else:
        waiting.newest[following & mask] = waiting.newest[place]
        waiting.slots[slot] = np.int32(following & mask)
    ends.waiting_head[0] += 1


def _capacity(needed: int, least: int) -> int:
    return max(least, 1 << (needed - 1).bit_length())


def _places(head: Longs, tail: Longs, capacity: int) -> Longs:
    return np.arange(int(head[0]), int(tail[0])) & (capacity - 1)


def _copy(
    old: Sequence[npt.NDArray[Any]], new: Sequence[npt.NDArray[Any]], before: Longs, after: Longs
) -> None:
    for source, target in zip(old, new, strict=True):
        target[after] = source[before]


def _make_entries(capacity: int) -> Entries:
    return Entries(
        np.full(2 * capacity, -1, np.int32),
        np.zeros(capacity, np.uint64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
    )


def _grown_entries(old: Entries, head: Longs, tail: Longs, needed: int) -> Entries:
    new = _make_entries(_capacity(needed, _SMALLEST))
    before = _places(head, tail, old.hashes.shape[0])
    after = _places(head, tail, new.hashes.shape[0])
    _copy(old[1:], new[1:], before, after)
    _index_entries(new.slots, new.hashes, after)
    return new


@kernel
def _index_entries(slots, hashes, places):  # type: ignore[no-untyped-def]
    for place in places:  # of two with one hash (an id used again) the newer is meant
        slots[find_slot(slots, hashes, hashes[place])] = np.int32(place)


def _make_open(capacity: int, arena: int, singles: int, numbers: int, widths: int) -> OpenRows:
    return OpenRows(
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.uint8),
        np.zeros((capacity, singles), np.uint64),
        np.zeros((capacity, numbers), np.float32),
        np.zeros((capacity, widths), np.int32),
        np.zeros(capacity, np.int64),
        np.zeros(arena, np.uint8),
    )


def _grown_open(
    old: OpenRows, ends: Ends, rows: int, arena: int, widths: tuple[int, int, int]
) -> OpenRows:
    new = _make_open(
        max(_capacity(rows, _SMALLEST), old.event_ms.shape[0]),
        max(_capacity(arena, _SMALLEST_ARENA), old.arena.shape[0]),
        *widths,
    )
    before = _places(ends.open_head, ends.entry_tail, old.event_ms.shape[0])
    after = _places(ends.open_head, ends.entry_tail, new.event_ms.shape[0])
    _copy(old[:-2], new[:-2], before, after)
    ends.arena_tail[0] = _move_runs(old, new, before, after)
    return new


@kernel
def _move_runs(old, new, before, after):  # type: ignore[no-untyped-def]
    tail = np.int64(0)
    for i in range(before.shape[0]):
        start = old.starts[before[i]] & (old.arena.shape[0] - 1)
        new.starts[after[i]] = tail
        for j in range(old.lengths.shape[1]):
            for _ in range(old.lengths[before[i], j]):
                new.arena[tail] = old.arena[start]
                tail += 1
                start += 1
    return tail


def _make_waiting(capacity: int) -> Waiting:
    return Waiting(
        np.full(2 * capacity, -1, np.int32),
        np.zeros(capacity, np.uint64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.uint8),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
    )


def _grown_waiting(old: Waiting, ends: Ends, needed: int) -> Waiting:
    new = _make_waiting(_capacity(needed, _SMALLEST))
    before = _places(ends.waiting_head, ends.waiting_tail, old.hashes.shape[0])
    after = _places(ends.waiting_head, ends.waiting_tail, new.hashes.shape[0])
    _copy(old[1:], new[1:], before, after)
    _index_waiting(new.slots, new.hashes, after)
    return new


@kernel
def _index_waiting(slots, hashes, places):  # type: ignore[no-untyped-def]
    for place in places:  # of a chain the oldest, which comes first
        slot = find_slot(slots, hashes, hashes[place])
        if slots[slot] < 0:
            slots[slot] = np.int32(place)
