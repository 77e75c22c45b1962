"""The inputs of an example and the places of their rows. Parts of every model's kernels.

The inputs are the intercept, an id for each single-valued field, a weight times a number for each
plain number, an id for each item of each bag, and the statistics of rows. All of them are rows,
found by id.

The rows of a block of examples are found before the first of them is learned, since places do not
move. Only statistics wait for their example, because they depend on the counters that the example
before it raised.

Loops are written for numba: every attribute of a named tuple that a loop uses is named before it.
Taking it inside the loop would count a reference each time, atomically.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Kind
from headrace.learner.inputs.rare_rows import (
    admit_unseen,
    fetch_admission,
    list_reads,
    list_unseen,
    place_unseen,
)
from headrace.learner.inputs.statistics import keep, recall, statistic_id, take_levels
from headrace.learner.kernels.row_lookup import (
    add_rows,
    bucket_at,
    fetch_ids,
    fetch_next,
    fetch_rest,
    fetch_slots,
    find_fetched,
    find_rows,
    longer_than_a_line,
    shift_of,
)
from headrace.pserver.rows.table import find, find_or_add
from headrace.runtime.kernels.numba_kernels import inlined

INTERCEPT = 0x9AE16A3B2F90404F & ~1023
"""Id of the intercept's row: field number 0; its upper bits are an arbitrary constant."""

BLOCK = 8
"""Examples whose rows are found ahead: enough walks to overlap, few enough to stay in cache."""

_SHOWN, _CLICKED, _CLOSED = int(Kind.SHOWN), int(Kind.CLICKED), int(Kind.CLOSED)
_INTERCEPT = np.uint64(INTERCEPT)
_ONE = np.float32(1.0)


class FeatureColumns(NamedTuple):
    """`Encoded`, as kernels take it: read-only, aligned, contiguous."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    bag_ids: npt.NDArray[np.uint64]  # (total,)
    bag_offsets: npt.NDArray[np.int32]  # (n * bags + 1,)
    numbers: npt.NDArray[np.float32]  # (n, numbers)
    number_ids: npt.NDArray[np.uint64]  # (numbers,)
    bag_weights: npt.NDArray[np.float32]  # (total,) value of each item, or (0,) if all are 1


class LabelledColumns(NamedTuple):
    """The columns of a batch of examples other than its features."""

    kinds: npt.NDArray[np.uint8]  # (n,)
    labels: npt.NDArray[np.uint8]  # (n,)
    event_ms: npt.NDArray[np.int64]  # (n,)
    shown_ms: npt.NDArray[np.int64]  # (n,)
    impressions: npt.NDArray[np.uint64]  # (n,) hashes, or (0,) if not needed
    weights: npt.NDArray[np.float32]  # (n,) what each counts as, or (0,) if all are 1
    ends: npt.NDArray[np.int64]  # (n,) the first example after the slate of each
    chosen: bool = False  # whether the loss is that of a choice among the slate
    weighed: bool = True  # whether the slope has importance weights: see `slope_of`


class InputScratch(NamedTuple):
    """Working memory of one call: the inputs of a block of examples, which has whole slates."""

    ids: npt.NDArray[np.uint64]  # (block, inputs) of the rows that are the inputs
    places: npt.NDArray[np.int64]  # (block, inputs) of these rows, -1 if missing
    live: npt.NDArray[np.bool_]  # (block, inputs) False where the example already counted
    x: npt.NDArray[np.float32]  # (block, inputs) value of the input, 1 for an id
    unseen: npt.NDArray[np.int64]  # (inputs,) which inputs of the example at hand have no row
    reads: npt.NDArray[np.int64]  # (inputs,) places that it is predicted from
    zs: npt.NDArray[np.float32]  # (inputs,) z of the same
    weights: npt.NDArray[np.float32]  # (inputs,) of the same
    squares: npt.NDArray[np.float32]  # (inputs,) n of the same, before the step
    roots: npt.NDArray[np.float32]  # (inputs,) sqrt(n)
    gradients: npt.NDArray[np.float32]  # (inputs,) of a slate, by rows that are not stepped yet
    common: npt.NDArray[np.float32]  # (4, inputs) z and n, in view and pending, of `find_common`
    levels: npt.NDArray[np.int16]  # (levels,) of the same
    counts: npt.NDArray[np.int64]  # (block,) inputs of each example, without statistics
    totals: npt.NDArray[np.int64]  # (block,) inputs of each example that was found
    stopped: npt.NDArray[np.int64]  # (1,) row of the example that a kernel stopped at
    everywhere: npt.NDArray[np.bool_]  # (1,) True: all ids are in one bucket, and that counts


@inlined
def _list_own(features, i, scratch, row):  # type: ignore[no-untyped-def]
    """Write ids of the fields and items of example i, and values of all but its statistics.

    Return how many inputs these are, with those that are inputs of every example.
    """
    ids, x, numbers = scratch.ids[row], scratch.x[row], features.numbers
    singles = features.ids.shape[1]
    x[0] = _ONE
    for k in range(singles):
        ids[1 + k], x[1 + k] = features.ids[i, k], _ONE
    count = 1 + singles
    for k in range(numbers.shape[1]):
        x[count] = numbers[i, k]
        count += 1
    if features.bag_offsets.shape[0] > 1:
        bags = (features.bag_offsets.shape[0] - 1) // features.ids.shape[0]
        weights, weighted = features.bag_weights, features.bag_weights.shape[0] > 0
        for k in range(features.bag_offsets[i * bags], features.bag_offsets[(i + 1) * bags]):
            ids[count] = features.bag_ids[k]
            x[count] = weights[k] if weighted else _ONE
            count += 1
    return count


@inlined
def common_input(features, k):  # type: ignore[no-untyped-def]
    """Return which input is the kth that every example has, and the id of its row."""
    if k == 0:
        return 0, _INTERCEPT
    return features.ids.shape[1] + k, features.number_ids[k - 1]


@inlined
def list_statistics(program, field_ids, scratch, row, count):  # type: ignore[no-untyped-def]
    """Write ids and values of the statistics, given their levels; return how many inputs."""
    for k in range(program.numbers.shape[0]):
        scratch.ids[row, count] = statistic_id(program, k, scratch.levels, field_ids)
        scratch.x[row, count] = _ONE
        count += 1
    return count


@inlined
def find_common(columns, active, shift, features, scratch):  # type: ignore[no-untyped-def]
    """Find the rows that are inputs of every example, for the whole of a batch.

    These rows need no admission, and do not move while a kernel runs.
    """
    ids, places, live = scratch.ids, scratch.places, scratch.live
    for k in range(1 + features.number_ids.shape[0]):
        at, row_id = common_input(features, k)
        counts = active[bucket_at(row_id, shift)]
        place = find_or_add(columns, row_id) if counts else find(columns.slots, columns.ids, row_id)
        for row in range(ids.shape[0]):
            ids[row, at], places[row, at], live[row, at] = row_id, place, counts


@inlined
def list_levels(columns, program, memory, window_ms, labelled, i, scratch, row, singles):  # type: ignore[no-untyped-def]
    """Write the levels of example i to the scratch: the kept ones, or those of the rows."""
    kind = labelled.kinds[i]
    if kind != _CLOSED and recall(memory, labelled.impressions[i], scratch.levels):
        return
    take_levels(
        program,
        columns,
        scratch.places[row, 1 : 1 + singles],
        scratch.live[row, 1 : 1 + singles],
        np.int64(kind == _CLICKED),
        np.int64(labelled.labels[i]),
        labelled.shown_ms[i] // 1000,
        scratch.levels,
    )
    if kind == _SHOWN:
        keep(memory, labelled.impressions[i], scratch.levels, labelled.shown_ms[i], window_ms)


@inlined
def find_block(columns, active, shift, gate, features, begin, end, scratch):  # type: ignore[no-untyped-def]
    """Find the rows of all inputs of a block, except statistics, and prefetch the next block.

    Call it after `find_common`.
    """
    counts, singles = scratch.counts, 1 + features.ids.shape[1]
    items = singles + features.number_ids.shape[0]
    beyond = longer_than_a_line(columns)
    fetch_next(features, end, end + BLOCK)
    for i in range(begin, end):
        row = i - begin
        counts[row] = _list_own(features, i, scratch, row)
        fetch_slots(columns, scratch, row, 1, singles)
        fetch_slots(columns, scratch, row, items, counts[row])
    for row in range(end - begin):
        fetch_ids(columns, scratch, row, 1, singles)
        fetch_ids(columns, scratch, row, items, counts[row])
    for row in range(end - begin):
        count = counts[row]
        missing = find_fetched(columns, active, shift, scratch, row, 1, singles)
        missing += find_fetched(columns, active, shift, scratch, row, items, count)
        if missing:
            add_rows(columns, gate.guarded, scratch, row, 0, count)
        if gate.on:
            fetch_admission(columns, gate, scratch, row, count)
        if beyond:
            fetch_rest(columns, scratch, row, 1, singles)
            fetch_rest(columns, scratch, row, items, count)


@inlined
def begin_at(first):  # type: ignore[no-untyped-def]
    """Return the example to begin with: `first`, or 0 if it is None."""
    # None is a type: for learners that hold all rows the kernel is compiled without this branch
    if first is None:
        return 0
    return first


@inlined
def _lacks(scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Return whether the row of any of inputs [begin, end) is not in the table."""
    places = scratch.places[row]
    lacking = 0
    for k in range(begin, end):
        lacking += 1 if places[k] < 0 else 0
    return lacking > 0


@inlined
def find_example(  # type: ignore[no-untyped-def]
    columns,
    active,
    shift,
    program,
    memory,
    window_ms,
    gate,
    features,
    labelled,
    i,
    scratch,
    row,
    first=None,
):
    """Find what is left of example i, whose block was found: unseen ids first, then statistics.

    Return how many inputs it has, and how many of them have no row of their own: then it is
    predicted from the rows at `scratch.reads`, else from those at its places. With `first` it may
    return -1 inputs: the row of a statistic must be fetched first, and the call can be repeated.
    """
    count, unseen = scratch.counts[row], 0
    if gate.on:
        clicked, shown_s = labelled.kinds[i] == _CLICKED, labelled.shown_ms[i] // 1000
        unseen = list_unseen(columns, gate, clicked, shown_s, scratch, row, count)
    if program.numbers.shape[0]:
        singles = features.ids.shape[1]
        list_levels(columns, program, memory, window_ms, labelled, i, scratch, row, singles)
        fixed = count
        count = list_statistics(program, features.ids[i], scratch, row, fixed)
        missing = find_rows(columns, active, shift, scratch, row, fixed, count)
        if first is not None and _lacks(scratch, row, fixed, count):
            scratch.stopped[0] = row
            return -1, 0
        if missing:
            add_rows(columns, gate.guarded, scratch, row, fixed, count)
    scratch.totals[row] = count
    if unseen:
        list_reads(columns, gate, unseen, scratch, row, count)
    return count, unseen


@inlined
def admit_slate(columns, gate, labelled, begin, end, scratch, row):  # type: ignore[no-untyped-def]
    """Make the rows of ids that are admitted by one of examples [begin, end), a slate.

    row: of the first example. All examples of the slate are already scored.
    """
    if not gate.on:
        return
    for i in range(begin, end):
        at, shown_s = row + i - begin, labelled.shown_ms[i] // 1000
        count = scratch.counts[at]
        unseen = list_unseen(columns, gate, False, shown_s, scratch, at, count)
        if unseen:
            impression = labelled.impressions[i] if gate.sightings == 0 else np.uint64(0)
            second = np.uint32(labelled.event_ms[i] // 1000)
            admit_unseen(columns, gate, unseen, second, impression, scratch, at)


@inlined
def find_again(columns, gate, labelled, i, scratch, row):  # type: ignore[no-untyped-def]
    """Give each input of example i of a slate the place where it is learned.

    All examples of the slate are already scored, and one of them may have made a row that was
    missing before (`admit_slate`).
    """
    if not gate.on:
        return
    clicked, shown_s = labelled.kinds[i] == _CLICKED, labelled.shown_ms[i] // 1000
    count = scratch.counts[row]
    unseen = list_unseen(columns, gate, clicked, shown_s, scratch, row, count)
    if unseen:
        list_reads(columns, gate, unseen, scratch, row, count)
        settle_unseen(columns, gate, labelled, i, unseen, False, scratch, row)


@inlined
def inputs_of_next(scratch, row, count, more):  # type: ignore[no-untyped-def]
    """Return how many of the inputs of an example the next one of its slate has, too.

    more: whether the slate has a next example. All examples of the slate are already found.
    """
    return min(count, scratch.totals[row + 1]) if more else 0


@inlined
def is_stepped_later(scratch, row, k):  # type: ignore[no-untyped-def]
    """Whether the next example of a slate has the row of input k as its input k, too.

    Then the row is stepped with that example, by the sum of their gradients. k: below
    `inputs_of_next`.
    """
    at = np.uint64(k)  # unsigned: never from the end
    place, live = scratch.places[row, at], scratch.live
    same = place >= 0 and place == scratch.places[row + 1, at]
    return same and live[row, at] and live[row + 1, at]


@inlined
def find_candidate(columns, program, gate, features, event_ms, i, scratch):  # type: ignore[no-untyped-def]
    """Find the rows of impression i, shown at `event_ms`, in row 0 of the scratch. Adds none.

    Returns what `find_example` does.
    """
    everywhere, shift, unseen = scratch.everywhere, shift_of(1), 0
    count = _list_own(features, i, scratch, 0)
    for k in range(1 + features.number_ids.shape[0]):
        at, row_id = common_input(features, k)
        scratch.ids[0, at] = row_id
    find_rows(columns, everywhere, shift, scratch, 0, 0, count)
    if gate.on:
        unseen = list_unseen(columns, gate, False, 0, scratch, 0, count)
    if program.numbers.shape[0]:
        singles = features.ids.shape[1]
        places, live = scratch.places[0, 1 : 1 + singles], scratch.live[0, 1 : 1 + singles]
        take_levels(program, columns, places, live, 0, 0, event_ms // 1000, scratch.levels)
        fixed = count
        count = list_statistics(program, features.ids[i], scratch, 0, fixed)
        find_rows(columns, everywhere, shift, scratch, 0, fixed, count)
    if unseen:
        list_reads(columns, gate, unseen, scratch, 0, count)
    return count, unseen


@inlined
def settle_unseen(columns, gate, labelled, i, unseen, admitting, scratch, row):  # type: ignore[no-untyped-def]
    """Give each input of example i without a row the place where it is learned."""
    impression = labelled.impressions[i] if gate.sightings == 0 else np.uint64(0)
    clicked = labelled.kinds[i] == _CLICKED
    place_unseen(columns, gate, unseen, clicked, impression, admitting, scratch, row)


@inlined
def weight_of(labelled, i):  # type: ignore[no-untyped-def]
    """Return the weight of example i in the loss, by which its slope is multiplied."""
    return labelled.weights[i] if labelled.weights.shape[0] else _ONE


@inlined
def counts_of(labelled, i):  # type: ignore[no-untyped-def]
    """Return what example i adds to the counters of its rows: shows, clicks, the second it was.

    The weight of the example does not matter: counters count events.
    """
    kind = labelled.kinds[i]
    shows = 0 if kind == _CLICKED else 1
    clicks = 0 if kind == _SHOWN else np.int64(labelled.labels[i])
    return shows, clicks, np.uint32(labelled.event_ms[i] // 1000)
