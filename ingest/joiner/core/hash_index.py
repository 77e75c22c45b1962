"""A hash index over a ring: finds the place that holds a hash.

It probes linearly over slots of 32 bits. The lower bits of a slot, as many as the ring's capacity
needs, are the place of an element. The other bits are bits of the element's hash. A search that
passes ten slots hardly ever reads an element that differs, somewhere in gigabytes. So the slots may
be three quarters full. Their number need not be a power of two: the index grows by a
quarter at a time and is rebuilt from the ring's hashes alone. It takes 5 to 7 bytes an element,
growth included.
"""

import numpy as np
import numpy.typing as npt

from headrace.runtime.kernels.numba_kernels import inlined

Slots = npt.NDArray[np.uint32]

NOWHERE = -1
_EMPTY = np.uint64(0xFFFFFFFF)
_LOWER = np.uint64(0xFFFFFFFF)
_FULLEST = 0.75
_GROWTH = 1.25
_SMALLEST = 16


def slots_for(elements: int) -> Slots:
    """Return empty slots for this many elements, with room for a quarter more."""
    count = max(_SMALLEST, int(elements * _GROWTH / _FULLEST) + 1)
    return np.full(count, _EMPTY, np.uint32)


def too_full(slots: Slots, elements: int) -> bool:
    """Whether this many elements need more slots."""
    return bool(elements > slots.shape[0] * _FULLEST)


@inlined
def find_slot(slots, hashes, wanted):  # type: ignore[no-untyped-def]
    """Return the slot that holds a place with this hash, or the empty slot for it."""
    mask = np.uint64(hashes.shape[0] - 1)
    tag = _tag(wanted, mask)
    slot = _home(slots, wanted)
    while True:
        held = np.uint64(slots[slot])
        if held == _EMPTY or (held & ~mask == tag and hashes[held & mask] == wanted):
            return slot
        slot = slot + 1 if slot + 1 < slots.shape[0] else 0


@inlined
def place_in(slots, hashes, slot):  # type: ignore[no-untyped-def]
    """Return the place in a slot, or NOWHERE."""
    held = np.uint64(slots[slot])
    return np.int64(NOWHERE) if held == _EMPTY else np.int64(held & np.uint64(hashes.shape[0] - 1))


@inlined
def find_place(slots, hashes, wanted):  # type: ignore[no-untyped-def]
    """Return the place that has this hash, or NOWHERE."""
    return place_in(slots, hashes, find_slot(slots, hashes, wanted))


@inlined
def put_in(slots, hashes, slot, place):  # type: ignore[no-untyped-def]
    """Store a place, whose hash is already in `hashes`, in a slot."""
    mask = np.uint64(hashes.shape[0] - 1)
    slots[slot] = np.uint32(_tag(hashes[place], mask) | np.uint64(place))


@inlined
def clear_slot(slots, hashes, slot):  # type: ignore[no-untyped-def]
    """Empty a slot, moving back those that probed past it (Knuth, 6.4, Algorithm R)."""
    count = slots.shape[0]
    probe = slot
    while True:
        slots[slot] = np.uint32(_EMPTY)
        while True:
            probe = probe + 1 if probe + 1 < count else 0
            place = place_in(slots, hashes, probe)
            if place == NOWHERE:
                return
            from_home = probe - _home(slots, hashes[place])
            from_hole = probe - slot
            # it stays if its home is cyclically after the hole
            if from_home + (count if from_home < 0 else 0) >= from_hole + (
                count if from_hole < 0 else 0
            ):
                break
        slots[slot] = slots[probe]
        slot = probe


@inlined
def clear_all(slots):  # type: ignore[no-untyped-def]
    """Empty every slot."""
    for slot in range(slots.shape[0]):
        slots[slot] = np.uint32(_EMPTY)


@inlined
def _home(slots, wanted):  # type: ignore[no-untyped-def]
    return np.int64(((wanted >> np.uint64(32)) * np.uint64(slots.shape[0])) >> np.uint64(32))


@inlined
def _tag(wanted, mask):  # type: ignore[no-untyped-def]
    """Return the lower half of a hash without the bits of a place.

    The result never makes a slot look empty.
    """
    tag = wanted & _LOWER & ~mask
    return tag if tag | mask != _LOWER else tag ^ (mask + np.uint64(1))
