"""Keeps the last clicked items of a user in rows, and reads them as of a time.

A field with `transform = "history"` has as items what the user clicked last. Producers do not send
them: the learner keeps them. A user has a fixed number of slots, and each slot is a row of its own,
in one bucket, whose id follows from the user. A slot holds one click:

    shows: lower half of the item's id | clicks: upper half | last_seen: the second of the click

Rows change by adding, and counters add modulo 2^32. So a new item is written as the difference from
the old one, and the parameter server, its log, its snapshots and expiry need no change. A push
carries the difference and the marks together: each click is written exactly once.

Differences commute. Two learners that write different slots of a user at once both keep their
click. If both write the same slot, the sum is not an id: the ten bits of an id that say its field,
which need not be stored, seal id and second together, and a slot with a broken seal reads as empty
until it is written again. A new click takes one of the four oldest slots, chosen by its hash, so
this is rare. It can happen only within the time between two pushes, and costs those clicks alone.

There are more slots than items in a history. A history is read as of a second: the newest items
clicked before it, in the order of time. The click on an example is never part of its own history,
also if it is learned again after a crash, and a click that is learned minutes after its impression
is learned with the impression's history. The result does not depend on the order of clicks.

*Refused:* a row with all items of a user, merged as a set of the newest (Shapiro et al., "Conflict-
free Replicated Data Types", 2011). It needs a second kind of merge in store, log and snapshots, and
two writers of one user within one push are too rare for that.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.kernels.row_counters import count_row
from headrace.learner.kernels.row_ids import NUMBER_BITS, mix
from headrace.pserver.rows.table import find, find_or_add
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_CHOICES = 4
"""Oldest slots of a user from which the hash of a click chooses."""
_LEAST_SPARE = 2 * _CHOICES
_HIGH = np.uint64(0xFFFF000000000000)
_MIDDLE = np.uint64(0x0000FFFFFFFFFC00)
_BODY = np.uint64(0xFFFFFFFFFFFFFC00)
_LOWER = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_SEED = np.uint64(0xD6E8FEB86659FD93)
_ITEMS = np.uint64(0xA0761D6478BD642F)
_ONE, _NOTHING = np.uint64(1), np.uint64(0)


class SlotScratch(NamedTuple):
    """Working memory for the slots of one user."""

    places: npt.NDArray[np.int64]  # (slots,) of their rows, -1 if missing
    seconds: npt.NDArray[np.int64]  # (slots,) of what was written last, 0 if nothing
    sealed: npt.NDArray[np.uint64]  # (slots,) id and seal of the item, 0 if empty or broken
    newest: npt.NDArray[np.int64]  # (slots,) the slots of the newest items, in the order of time


def slot_scratch(slots: int) -> SlotScratch:
    """Return working memory for users of up to so many slots."""
    return SlotScratch(
        np.empty(slots, np.int64),
        np.empty(slots, np.int64),
        np.empty(slots, np.uint64),
        np.empty(slots, np.int64),
    )


@kernel
def slots_of(last):  # type: ignore[no-untyped-def]
    """Return the number of slots for histories of so many items. Compiled."""
    return last + max(_LEAST_SPARE, last // 2)


@kernel
def slot_id(user, number, slot):  # type: ignore[no-untyped-def]
    """Return the id of a slot: all slots of a user are in one bucket. Compiled."""
    base = mix(user ^ (number * _SEED))
    return (base & _HIGH) | (mix(base + np.uint64(slot) + _ONE) & _MIDDLE) | number


@kernel
def item_id(item, number):  # type: ignore[no-untyped-def]
    """Return the id that an item has in a history, given its id in its own field. Compiled."""
    return (mix(item ^ (number * _ITEMS)) & _BODY) | number


@kernel
def sealed_id(item, second):  # type: ignore[no-untyped-def]
    """Return an id of `item_id` with a seal in place of the field's number. Compiled."""
    body = item & _BODY
    return body | (mix(body ^ np.uint64(second)) & NUMBER_BITS)


@inlined
def _read_slots(columns, user, number, slots, scratch):  # type: ignore[no-untyped-def]
    places, seconds, sealed = scratch.places, scratch.seconds, scratch.sealed
    shows, clicks, last_seen = columns.shows, columns.clicks, columns.last_seen
    for k in range(slots):
        place = find(columns.slots, columns.ids, slot_id(user, number, k))
        places[k], seconds[k], sealed[k] = place, 0, _NOTHING
        if place >= 0:
            found = (shows[place] & _LOWER) | (clicks[place] << _HALF)
            second = np.int64(last_seen[place])
            seconds[k] = second
            if found == sealed_id(found, second):
                sealed[k] = found


@inlined
def _is_before(scratch, k, second, sealed):  # type: ignore[no-untyped-def]
    """Return whether slot k is before a click in the order of time, then of ids."""
    if scratch.seconds[k] != second:
        return scratch.seconds[k] < second
    return scratch.sealed[k] < sealed


@kernel
def write_click(columns, gaining, user, item, number, second, last, scratch):  # type: ignore[no-untyped-def]
    """Write a click on `item`, an id of `item_id`, to a slot of the user. Compiled.

    The caller reserved room for a row. A click that is already there changes nothing, and neither
    does one that is older than all slots.
    """
    slots = slots_of(last)
    _read_slots(columns, user, number, slots, scratch)
    written = sealed_id(item, second)
    for k in range(slots):
        if scratch.seconds[k] == second and scratch.sealed[k] == written:
            return
    oldest, count = scratch.newest, 0
    for _ in range(_CHOICES):
        best = -1
        for k in range(slots):
            taken = not _is_before(scratch, k, second, written)
            for j in range(count):
                taken |= oldest[j] == k
            if not taken and (
                best < 0 or _is_before(scratch, k, scratch.seconds[best], scratch.sealed[best])
            ):
                best = k
        if best < 0:
            break
        oldest[count] = best
        count += 1
    if not count:
        return
    slot = oldest[np.int64(mix(written) % np.uint64(count))]
    place = find_or_add(columns, slot_id(user, number, slot))
    shows = (written - columns.shows[place]) & _LOWER
    clicks = ((written >> _HALF) - columns.clicks[place]) & _LOWER
    count_row(columns, gaining, place, shows, clicks, np.uint32(second))


@kernel
def read_items(columns, user, number, before, last, scratch, ids, begin):  # type: ignore[no-untyped-def]
    """Write the newest items before a second to `ids[begin:]`, the newest last. Compiled.

    Returns how many items these are.
    """
    slots = slots_of(last)
    _read_slots(columns, user, number, slots, scratch)
    newest, count = scratch.newest, 0
    for k in range(slots):
        second, sealed = scratch.seconds[k], scratch.sealed[k]
        if sealed == _NOTHING or second >= before:
            continue
        if count < last:
            at = count
            count += 1
        elif _is_before(scratch, newest[0], second, sealed):
            for j in range(1, count):
                newest[j - 1] = newest[j]
            at = count - 1
        else:
            continue
        while at > 0 and not _is_before(scratch, newest[at - 1], second, sealed):
            newest[at] = newest[at - 1]
            at -= 1
        newest[at] = k
    for j in range(count):
        ids[begin + j] = (scratch.sealed[newest[j]] & _BODY) | number
    return count
