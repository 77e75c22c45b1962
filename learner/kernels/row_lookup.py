"""Finds the rows of a block of inputs. Parts of every model's kernels.

Finding a row walks through memory that no cache holds. Stages overlap these walks: prefetch the
slots of the whole block, then the rows they name, then look, and prefetch the rest of the rows.
"""

import numpy as np

from headrace.pserver.intrinsics.row_prefetch import FLOATS_A_LINE, prefetch, prefetch_at
from headrace.pserver.rows.columns import FLOATS_BEFORE
from headrace.pserver.rows.table import find, find_or_add, home
from headrace.runtime.kernels.numba_kernels import inlined

_IDS_A_LINE = 8
_NUMBER = np.uint64(1023)


@inlined
def shift_of(buckets):  # type: ignore[no-untyped-def]
    """Return by how much half an id is shifted to give its bucket (by 64 at once is undefined)."""
    shift = 63
    while (1 << (63 - shift)) < buckets:
        shift -= 1
    return np.uint64(shift)


@inlined
def bucket_at(row_id, shift):  # type: ignore[no-untyped-def]
    """Return the bucket that a row is in; shift: `shift_of` how many there are."""
    return (row_id >> np.uint64(1)) >> shift


@inlined
def fetch_next(features, begin, end):  # type: ignore[no-untyped-def]
    """Prefetch the ids of examples [begin, end), as far as there are any."""
    ids = features.ids
    for i in range(begin, min(end, ids.shape[0])):
        for k in range(0, ids.shape[1], _IDS_A_LINE):
            prefetch_at(ids, i, k)


@inlined
def fetch_slots(columns, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Prefetch the slots of the index that will be read, and note which."""
    slots, ids, places = columns.slots, scratch.ids[row], scratch.places[row]
    for i in range(begin, end):
        k = np.uint64(i)  # unsigned: never from the end
        slot = home(slots, ids[k])
        places[k] = slot
        prefetch(slots, slot)


@inlined
def fetch_ids(columns, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Prefetch the rows that the index names, which are nearly always the ones wanted."""
    slots, row_ids, places = columns.slots, columns.ids, scratch.places[row]
    for i in range(begin, end):
        k = np.uint64(i)
        place = slots[np.uint64(places[k])]
        places[k] = place
        prefetch(row_ids, max(place, 0))


@inlined
def find_fetched(columns, active, shift, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Find the rows of inputs [begin, end), prefetched before; return how many are missing."""
    slots, row_ids = columns.slots, columns.ids
    ids, places, live = scratch.ids[row], scratch.places[row], scratch.live[row]
    missing = 0
    for i in range(begin, end):
        k = np.uint64(i)
        row_id, place = ids[k], places[k]
        live[k] = active[bucket_at(row_id, shift)]
        if place < 0 or row_ids[np.uint64(place)] != row_id:
            # an example before this one may have added it since the index was looked up
            places[k] = place = find(slots, row_ids, row_id)
            missing += 1 if place < 0 and live[k] else 0
    return missing


@inlined
def _floats_a_row(columns):  # type: ignore[no-untyped-def]
    """Return the length of a row in floats, its pending part included."""
    return columns.values.strides[0] // 4


@inlined
def longer_than_a_line(columns):  # type: ignore[no-untyped-def]
    """Return whether a row is longer than its first cache line."""
    return _floats_a_row(columns) > FLOATS_A_LINE


@inlined
def fetch_rest(columns, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Prefetch what the step of an example will change beyond the first cache line of a row.

    If rows are not aligned to lines, one line of some rows is not prefetched.
    """
    places, values, floats = scratch.places[row], columns.values, _floats_a_row(columns)
    last = floats - FLOATS_BEFORE - 1
    for i in range(begin, end):
        place = max(places[np.uint64(i)], 0)
        for k in range(FLOATS_A_LINE, floats, FLOATS_A_LINE):
            prefetch_at(values, place, min(k, last))


@inlined
def find_rows(columns, active, shift, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Find the rows of inputs [begin, end); return how many are missing."""
    slots, row_ids = columns.slots, columns.ids
    ids, places, live = scratch.ids[row], scratch.places[row], scratch.live[row]
    missing = 0
    for k in range(begin, end):
        live[k] = active[bucket_at(ids[k], shift)]
        places[k] = find(slots, row_ids, ids[k])
        if places[k] < 0 and live[k]:
            missing += 1
    return missing


@inlined
def add_rows(columns, guarded, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Add the missing rows of inputs [begin, end)."""
    # apart from `find_rows`, quick as long as nothing in its loop is handed the whole table
    for k in range(begin, end):
        row_id = scratch.ids[row, k]
        if scratch.places[row, k] < 0 and scratch.live[row, k] and not guarded[row_id & _NUMBER]:
            scratch.places[row, k] = find_or_add(columns, row_id)
