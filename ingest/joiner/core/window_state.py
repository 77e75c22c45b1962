"""The window state of one partition: recent impressions, and clicks that wait for theirs.

Everything leaves in the order it came, so everything is a `Ring`. A sequence number, which only
grows, identifies an entry. There are five rings:

- entries: every impression accepted within the last two windows, as hash and clocks, with a hash
  index. It answers whether a click's impression is known, and whether an impression is repeated.
- open rows: the features of the entries whose window is open, under the same sequence numbers.
- the arena: their variable-length parts (ids as strings, slices, bags), as one run of bytes each; a
  run never wraps.
- waiting: clicks that came before their impression, chained by hash.
- repeats: older impressions whose id still comes again and again (a producer that sends "undefined"
  as an id). They must be recognized as duplicates, yet not hold up the ring of entries.

The XXH64 of its id identifies an impression. Among the millions pending at once two equal hashes
are not met in practice (for a hundred million, once in some four thousand times).

With 36 million impressions pending at once, every byte of an entry is 36 MB. So entries keep only
the lower half of a clock (`whole_clock`), rows keep times as differences from it, and lengths take
one byte where possible.

The rings grow (`WindowState.reserve`) before a kernel runs, so a kernel cannot run out of room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.joiner.core.byte_arena import write_run
from headrace.ingest.joiner.core.hash_index import (
    NOWHERE,
    Slots,
    clear_slot,
    find_slot,
    place_in,
    put_in,
    slots_for,
    too_full,
)
from headrace.ingest.joiner.core.ring_buffer import Column, Ring
from headrace.runtime.kernels.numba_kernels import inlined, kernel

if TYPE_CHECKING:
    from headrace.ingest.joiner.core.input import EventColumns


Longs = npt.NDArray[np.int64]
Clocks = npt.NDArray[np.uint32]

_SMALLEST = 1024
_SMALLEST_ARENA = 1 << 16
CLOCK_MS = 1 << 32
"""The range of the lower half of a clock: 49 days. Nothing lives for more than two windows, of at
most a week each."""
WAITS, SETTLED, TOO_LATE = 0, 1, 2
"""Fates of a click in `WaitingClicks`: without an impression so far; met; too late for the
impression of its id, and awaiting a repetition of it."""


class OpenImpressions(NamedTuple):
    """Accepted impressions."""

    slots: Slots
    hashes: npt.NDArray[np.uint64]  # (capacity,)
    clocks: Clocks  # (capacity,) lower half of the clock of impressions when it was accepted
    lasts: Clocks  # (capacity,) the same when it, or a duplicate of it, was last seen


class OpenRowColumns(NamedTuple):
    """The part of open entries that examples need."""

    later_ms: npt.NDArray[np.int32]  # (capacity,) event time, less the clock of the entry
    append_ms: Longs  # (capacity,)
    clicked: npt.NDArray[np.uint8]  # (capacity,)
    starts: Longs  # (capacity,) in the arena; growing like sequence numbers
    ids: npt.NDArray[np.uint64]  # (capacity, singles)
    numbers: npt.NDArray[np.float32]  # (capacity, numbers)


class RepeatedImpressions(NamedTuple):
    """Impressions that left the entries and are still repeated."""

    slots: Slots
    hashes: npt.NDArray[np.uint64]  # (capacity,)
    clocks: Longs  # (capacity,) clock of impressions when it was put here
    lasts: Longs  # (capacity,) the same when it was last seen


class WaitingClicks(NamedTuple):
    """Clicks without an impression so far. A slot holds the oldest of its hash."""

    slots: Slots
    hashes: npt.NDArray[np.uint64]  # (capacity,)
    clocks: Longs  # (capacity,) clock of clicks when it was taken
    event_ms: Longs  # (capacity,)
    append_ms: Longs  # (capacity,)
    fates: npt.NDArray[np.uint8]  # (capacity,) WAITS, SETTLED or TOO_LATE
    following: Longs  # (capacity,) sequence number of the next of the same hash, or -1
    newest: Longs  # (capacity,) on the oldest of a hash: sequence number of the newest


class RingEnds(NamedTuple):
    """Heads and tails of the rings, as arrays of one element that kernels write."""

    entry_head: Longs
    entry_tail: Longs
    open_head: Longs
    """The tail of open rows is that of entries."""
    made_head: Longs
    """The first entry that is not an example yet."""
    arena_tail: Longs
    waiting_head: Longs
    waiting_tail: Longs
    repeat_head: Longs
    repeat_tail: Longs
    repeated: Longs
    """Entries that were seen again: each may become a repeat."""


class WindowRings(NamedTuple):
    """The state of one partition, as kernels take it."""

    entries: OpenImpressions
    open: OpenRowColumns
    arena: npt.NDArray[np.uint8]
    waiting: WaitingClicks
    repeats: RepeatedImpressions
    ends: RingEnds


class WindowState:
    """The rings of one partition, growing as needed."""

    def __init__(self, singles: int, numbers: int) -> None:
        long, clock = Column(np.int64), Column(np.uint32)
        self._entries = _Indexed(Column(np.uint64), clock, clock)
        self._open = Ring(
            _SMALLEST,
            *(Column(np.int32), long, Column(np.uint8), long),
            *(Column(np.uint64, singles), Column(np.float32, numbers)),
        )
        self._arena = Ring(_SMALLEST_ARENA, Column(np.uint8))
        self._waiting = _Indexed(
            *(Column(np.uint64), long, long, long, Column(np.uint8), long, long)
        )
        self._repeats = _Indexed(Column(np.uint64), long, long)
        self.ends = RingEnds(*(np.zeros(1, np.int64) for _ in RingEnds._fields))

    @property
    def rings(self) -> WindowRings:
        """The current arrays; `reserve` may replace them."""
        return WindowRings(
            OpenImpressions(*self._entries.arrays),
            OpenRowColumns(*self._open.arrays),
            self._arena.arrays[0],
            WaitingClicks(*self._waiting.arrays),
            RepeatedImpressions(*self._repeats.arrays),
            self.ends,
        )

    @property
    def pending(self) -> int:
        """Impressions whose window is open."""
        return int(self.ends.entry_tail[0] - self.ends.open_head[0])

    @property
    def known(self) -> int:
        """Impressions that a click or a duplicate still finds."""
        return int(self.ends.entry_tail[0] - self.ends.entry_head[0])

    @property
    def waiting_clicks(self) -> int:
        """Clicks whose impression has not come."""
        head, tail = int(self.ends.waiting_head[0]), int(self.ends.waiting_tail[0])
        waiting = WaitingClicks(*self._waiting.arrays)
        places = np.arange(head, tail) & (waiting.hashes.shape[0] - 1)
        return tail - head - int((waiting.fates[places] == SETTLED).sum())

    @property
    def held_bytes(self) -> int:
        """Memory of the state."""
        ends = self.ends
        return (
            self._entries.held_bytes(int(ends.entry_tail[0]))
            + self._open.held_bytes(int(ends.entry_tail[0]))
            + self._arena.held_bytes(int(ends.arena_tail[0]))
            + self._waiting.held_bytes(int(ends.waiting_tail[0]))
            + self._repeats.held_bytes(int(ends.repeat_tail[0]))
        )

    def reserve(self, rows: EventColumns, begin: int, end: int, clicks: int) -> None:
        """Make room for events `begin` to `end` of `rows`, and for `clicks` clicks."""
        more, ends = end - begin, self.ends
        self._entries.reserve(more, ends.entry_head, ends.entry_tail, _index_newest)
        tail = int(ends.entry_tail[0])
        self._open.grow(self.pending + more, int(ends.open_head[0]), tail)
        size = int(rows.most_bytes[end] - rows.most_bytes[begin])
        largest = int(np.diff(rows.most_bytes[begin : end + 1]).max()) if more else 0
        # a run never wraps, so it leaves less than the largest run unused at the end of the arena
        arena_tail = int(ends.arena_tail[0])
        needed = arena_tail - self._arena_head() + size + largest
        self._arena.grow(needed, self._arena_head(), arena_tail)
        self._waiting.reserve(clicks, ends.waiting_head, ends.waiting_tail, _index_oldest)
        most = int(ends.repeated[0]) + more
        self._repeats.reserve(most, ends.repeat_head, ends.repeat_tail, _index_newest)

    def release(self) -> None:
        """Give back the memory of evicted elements. Rows of examples already made are then gone."""
        ends = self.ends
        entry_tail = int(ends.entry_tail[0])
        self._entries.release(int(ends.entry_head[0]), entry_tail)
        self._open.release(int(ends.open_head[0]), entry_tail)
        self._arena.release(self._arena_head(), int(ends.arena_tail[0]))
        self._waiting.release(int(ends.waiting_head[0]), int(ends.waiting_tail[0]))
        self._repeats.release(int(ends.repeat_head[0]), int(ends.repeat_tail[0]))

    def _arena_head(self) -> int:
        if not self.pending:
            return int(self.ends.arena_tail[0])
        starts = OpenRowColumns(*self._open.arrays).starts
        return int(starts[int(self.ends.open_head[0]) & (starts.shape[0] - 1)])


class _Indexed:
    """A ring whose first column is a hash, and the index over it."""

    def __init__(self, *columns: Column) -> None:
        self._ring = Ring(_SMALLEST, *columns)
        self._slots = slots_for(0)

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return (self._slots, *self._ring.arrays)

    def reserve(self, more: int, head: Longs, tail: Longs, index: Callable[..., None]) -> None:
        needed = int(tail[0] - head[0]) + more
        grown = self._ring.grow(needed, int(head[0]), int(tail[0]))
        if grown or too_full(self._slots, needed):
            self._slots = slots_for(0)  # frees the old slots before the new ones are allocated
            self._slots = slots_for(needed)
            index(self._slots, self._ring.arrays[0], int(head[0]), int(tail[0]))

    def release(self, head: int, tail: int) -> None:
        self._ring.release(head, tail)

    def held_bytes(self, tail: int) -> int:
        return int(self._slots.nbytes) + self._ring.held_bytes(tail)


@inlined
def whole_clock(lower, now_ms):  # type: ignore[no-untyped-def]
    """Return the clock with this lower half: the last such clock up to `now_ms`."""
    return now_ms - ((now_ms - np.int64(lower)) & (CLOCK_MS - 1))


@inlined
def hold_row(rings, rows, i, clock, event_ms, append_ms):  # type: ignore[no-untyped-def]
    """Copy the features of event `i` of `rows` to the open row of the newest entry."""
    opened, ends = rings.open, rings.ends
    place = ends.entry_tail[0] & (opened.starts.shape[0] - 1)
    opened.later_ms[place] = event_ms - clock
    opened.append_ms[place] = append_ms
    opened.clicked[place] = 0
    for j in range(rows.ids.shape[1]):
        opened.ids[place, j] = rows.ids[i, j]
    for j in range(rows.numbers.shape[1]):
        opened.numbers[place, j] = rows.numbers[i, j]
    most_bytes = rows.most_bytes[i + 1] - rows.most_bytes[i]
    capacity = rings.arena.shape[0]
    start = ends.arena_tail[0]
    if (start & (capacity - 1)) + most_bytes > capacity:
        start = (start // capacity + 1) * capacity
    opened.starts[place] = start
    at = start & (capacity - 1)
    ends.arena_tail[0] = start + write_run(rings.arena, at, rows, i) - at


@inlined
def hold_click(waiting, ends, wanted, clock, event_ms, append_ms, fate):  # type: ignore[no-untyped-def]
    """Append a click to those that wait, after the others of its hash."""
    mask = waiting.hashes.shape[0] - 1
    sequence = ends.waiting_tail[0]
    place = sequence & mask
    waiting.hashes[place] = wanted
    waiting.clocks[place] = clock
    waiting.event_ms[place] = event_ms
    waiting.append_ms[place] = append_ms
    waiting.fates[place] = fate
    waiting.following[place] = -1
    slot = find_slot(waiting.slots, waiting.hashes, wanted)
    oldest = place_in(waiting.slots, waiting.hashes, slot)
    if oldest == NOWHERE:
        put_in(waiting.slots, waiting.hashes, slot, place)
        waiting.newest[place] = sequence
    else:
        waiting.following[waiting.newest[oldest] & mask] = sequence
        waiting.newest[oldest] = sequence
    ends.waiting_tail[0] = sequence + 1


@inlined
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
        put_in(waiting.slots, waiting.hashes, slot, following & mask)
    ends.waiting_head[0] += 1


@kernel
def _index_newest(slots, hashes, head, tail):  # type: ignore[no-untyped-def]
    for sequence in range(head, tail):  # of equal hashes (an id used again) the newest wins
        place = sequence & (hashes.shape[0] - 1)
        put_in(slots, hashes, find_slot(slots, hashes, hashes[place]), place)


@kernel
def _index_oldest(slots, hashes, head, tail):  # type: ignore[no-untyped-def]
    for sequence in range(head, tail):  # of equal hashes the oldest, which comes first, wins
        place = sequence & (hashes.shape[0] - 1)
        slot = find_slot(slots, hashes, hashes[place])
        if place_in(slots, hashes, slot) == NOWHERE:
            put_in(slots, hashes, slot, place)
