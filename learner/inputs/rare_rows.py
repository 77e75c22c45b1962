"""Rare rows: one row for all ids of a field and bucket that have no row of their own.

An id that is not admitted still learns. All such ids of a field that fall into one bucket share a
row, which has an id like any other:

    the bucket's bits of the id | a constant | the number of the field

It is in the bucket of the id's own row. So exactly once does not depend on which of the two an
example counts in: the same mark of the same bucket covers both, and the shows of a field's rows,
rare ones included, sum to the number of impressions. (If a model gets twice the buckets, one half
of each bucket keeps its rare rows, and the other half starts without.)

An id has a row if its row was ever seen and was not deleted since. Servers and learners ask the
same question of the same column. A row that a learner only made room for, or that an entry removed,
does not count: the score before learning is the one that a server would have answered. This holds
also for the example that makes a row: it is predicted from the rare row, and learned in its own.

A click belongs to its impression. If the row was made after that was shown, the impression counted
in the rare row, and there its click counts. And a click never makes a row.

Times of rows are seconds, and all candidates of a request are shown in the same one. So if one of
them makes a row, all of them count in it (`admit_unseen`). Otherwise the first candidates would
count in the rare row and their clicks in the own one. Rare rows would learn shows without clicks,
and all candidates of the next unknown user would be scored with that.

An id's statistics are those of its own row, never of the rare one: without a row, of nothing.
"""

import numpy as np

from headrace.learner.inputs.admission import admits, fetch_counters
from headrace.learner.kernels.row_ids import NUMBER_BITS, rare_id
from headrace.pserver.intrinsics.row_prefetch import prefetch
from headrace.pserver.rows.table import find, find_or_add
from headrace.runtime.kernels.numba_kernels import inlined

_ZERO = np.float32(0.0)


@inlined
def fetch_admission(columns, gate, scratch, row, count):  # type: ignore[no-untyped-def]
    """Prefetch the fields that say whether inputs have a row, and the counters of those without."""
    guarded, last_seen = gate.guarded, columns.last_seen
    ids, places = scratch.ids[row], scratch.places[row]
    for k in range(count):
        if guarded[ids[k] & NUMBER_BITS]:
            if places[k] >= 0:
                prefetch(last_seen, places[k])
            else:
                fetch_counters(gate, ids[k])


@inlined
def list_unseen(columns, gate, clicked, shown_s, scratch, row, count):  # type: ignore[no-untyped-def]
    """List the guarded inputs that have no row; return how many. Their place is -1 then.

    clicked: whether it is a click of what was shown at `shown_s`, in seconds.
    """
    slots, row_ids = columns.slots, columns.ids
    first_seen, last_seen = columns.first_seen, columns.last_seen
    guarded, ids, places = gate.guarded, scratch.ids[row], scratch.places[row]
    unseen = scratch.unseen
    listed = 0
    for k in range(count):
        if not guarded[ids[k] & NUMBER_BITS]:
            continue
        place = places[k]
        if place < 0:
            # an example before this one may have made it since its block was looked up
            place = find(slots, row_ids, ids[k])
        if place >= 0 and last_seen[place] > 0 and not (clicked and first_seen[place] > shown_s):
            places[k] = place
        else:
            places[k] = -1
            unseen[listed] = k
            listed += 1
    return listed


@inlined
def list_reads(columns, gate, listed, scratch, row, count):  # type: ignore[no-untyped-def]
    """Write which rows the inputs are predicted from: their own, or the rare ones of unseen ids."""
    slots, row_ids, high = columns.slots, columns.ids, gate.high
    ids, places = scratch.ids[row], scratch.places[row]
    reads, unseen = scratch.reads, scratch.unseen
    for k in range(count):
        reads[k] = places[k]
    for i in range(listed):
        k = unseen[i]
        reads[k] = find(slots, row_ids, rare_id(ids[k], high))


@inlined
def admit_unseen(columns, gate, listed, second, impression, scratch, row):  # type: ignore[no-untyped-def]
    """Make the rows of unseen ids that are admitted, for every candidate of the same request.

    second: time of the example that will count in them, so they are not unseen from now on.
    """
    ids, live, unseen = scratch.ids[row], scratch.live[row], scratch.unseen
    last_seen, tally = columns.last_seen, gate.tally
    for i in range(listed):
        k = unseen[i]
        if live[k] and admits(gate, ids[k], impression):
            tally[0] += 1
            last_seen[find_or_add(columns, ids[k])] = max(second, np.uint32(1))


@inlined
def place_unseen(  # type: ignore[no-untyped-def]
    columns, gate, listed, clicked, impression, admitting, scratch, row
):
    """Give each unseen id the place where it is learned: of a new row or of the rare one.

    admitting: whether it may get a row now; False if `admit_unseen` has decided.
    After the forward pass, which read the rare row: a new row has no weight yet to be stepped from.
    """
    ids, places, live = scratch.ids[row], scratch.places[row], scratch.live[row]
    high, reads, unseen, tally = gate.high, scratch.reads, scratch.unseen, gate.tally
    for i in range(listed):
        k = unseen[i]
        if not live[k]:
            continue
        if admitting and not clicked and admits(gate, ids[k], impression):
            tally[0] += 1
            places[k] = find_or_add(columns, ids[k])
            scratch.weights[k] = scratch.squares[k] = scratch.roots[k] = _ZERO
            continue
        tally[1] += 0 if clicked else 1
        places[k] = reads[k]
        if reads[k] < 0:
            places[k] = find_or_add(columns, rare_id(ids[k], high))
