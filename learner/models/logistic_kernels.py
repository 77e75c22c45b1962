"""The kernels of logistic regression: forward and step, slate by slate, compiled.

The candidates of a slate share rows, such as those of the user. Each has its slope at the scores
before the slate. So a shared row is stepped once, by the sum of its gradients, as in a mini-batch:
n grows by the square of the sum, and the step shrinks with it (Duchi, Hazan and Singer 2011). One
step for each candidate overshoots in long requests. *Refused:* slopes computed again before each
candidate. Under `immediate`, candidates push a shared row down with ever smaller slopes, and the
clicks push it up with full ones, so that predictions exceed the click rate.
"""

import math

import numpy as np

from headrace.learner.inputs.example_inputs import (
    BLOCK,
    admit_slate,
    begin_at,
    common_input,
    counts_of,
    find_again,
    find_block,
    find_candidate,
    find_common,
    find_example,
    inputs_of_next,
    is_stepped_later,
    settle_unseen,
    weight_of,
)
from headrace.learner.inputs.slates import part_end
from headrace.learner.intrinsics.simd_rows import add_two
from headrace.learner.kernels.ftrl import step, weight
from headrace.learner.kernels.loss import compete, probability_of, slope_of
from headrace.learner.kernels.row_counters import count_row
from headrace.learner.kernels.row_ids import NUMBER_BITS
from headrace.learner.kernels.row_lookup import shift_of
from headrace.pserver.rows.columns import row_record
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel

_row_at = row_record("z", "n")


@inlined
def _gather(columns, reads, scratch, begin, end):  # type: ignore[no-untyped-def]
    """Leave z and n of inputs [begin, end), from the rows at `reads`."""
    rows, zs, squares = columns.shows, scratch.zs, scratch.squares
    for i in range(begin, end):
        k = np.uint64(i)  # unsigned: never from the end
        zs[k] = squares[k] = np.float32(0.0)
        if reads[k] >= 0:
            row = _row_at(rows, reads[k])
            zs[k], squares[k] = row.z, row.n


@inlined_ieee_division
def _weigh(ftrl, scratch, count):  # type: ignore[no-untyped-def]
    """Leave weights and sqrt(n), from z and n.

    z and n were gathered before, so the arithmetic is a vectorized loop over neighbours.
    """
    zs, squares, roots, weights = scratch.zs, scratch.squares, scratch.roots, scratch.weights
    for k in range(count):
        root_n = math.sqrt(squares[k])
        roots[k] = root_n
        weights[k] = weight(zs[k], root_n, ftrl)


@inlined_ieee_division
def _forward(ftrl, scratch, row, count):  # type: ignore[no-untyped-def]
    """Return the probability of a click, from z and n; leave weights and sqrt(n)."""
    _weigh(ftrl, scratch, count)
    weights, x = scratch.weights, scratch.x[row]
    total = other = 0.0
    for k in range(0, count - 1, 2):  # two sums, so that one need not wait for the other
        total += weights[k] * x[k]
        other += weights[k + 1] * x[k + 1]
    if count % 2:
        total += weights[count - 1] * x[count - 1]
    return probability_of(total + other + ftrl.offset)


@inlined
def _sum_gradients(slope, scratch, row, count, more):  # type: ignore[no-untyped-def]
    """Take the step back from rows that the next example of the slate has at the same inputs.

    That example steps them by the sum of the gradients. more: whether there is a next example.
    """
    x, zs, squares, summed = scratch.x[row], scratch.zs, scratch.squares, scratch.gradients
    following = inputs_of_next(scratch, row, count, more)
    for k in range(following):
        if is_stepped_later(scratch, row, k):
            summed[k] += slope * x[k]
            zs[k] = squares[k] = np.float32(0.0)
        else:
            summed[k] = np.float32(0.0)
    for k in range(following, count):
        summed[k] = np.float32(0.0)


@inlined_ieee_division
def _step(ftrl, slope, scratch, row, count, together, more):  # type: ignore[no-untyped-def]
    """Replace z and n of each input by what they gain.

    together: whether the example is in a slate of several; more: whether one of them follows.
    """
    x, zs, squares = scratch.x[row], scratch.zs, scratch.squares
    weights, roots, summed = scratch.weights, scratch.roots, scratch.gradients
    slope = np.float32(slope)
    for k in range(count):
        gradient = summed[k] + slope * x[k]
        zs[k], squares[k] = step(gradient, weights[k], squares[k], roots[k], ftrl)
    if together:
        _sum_gradients(slope, scratch, row, count, more)


@inlined
def _scatter(columns, gaining, counted, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Add what inputs [begin, end) gained to their rows, and count the example in these."""
    seen, pending = columns.values, gaining.values
    places, live, zs, squares = scratch.places[row], scratch.live[row], scratch.zs, scratch.squares
    shows, clicks, second = counted
    for i in range(begin, end):
        k = np.uint64(i)
        if live[k]:
            place, z_gain, n_gain = places[k], zs[k], squares[k]
            if n_gain != 0.0:  # 0: no step, as in a row that is stepped later
                add_two(seen, place, z_gain, n_gain)
                add_two(pending, place, z_gain, n_gain)
            count_row(columns, gaining, place, shows, clicks, second)


@inlined
def _take_common(columns, gaining, features, scratch):  # type: ignore[no-untyped-def]
    """Copy the rows that are inputs of every example to the scratch, while a batch is learned.

    They are contiguous there, so that several are computed at a time.
    """
    common = scratch.common
    for k in range(1 + features.number_ids.shape[0]):
        at, _ = common_input(features, k)
        place = scratch.places[0, at]
        for i in range(2):
            common[i, at] = columns.values[place, i] if place >= 0 else np.float32(0.0)
            common[2 + i, at] = gaining.values[place, i] if place >= 0 else np.float32(0.0)


@inlined
def _gather_common(scratch, begin, end):  # type: ignore[no-untyped-def]
    zs, squares, z, n = scratch.zs, scratch.squares, scratch.common[0], scratch.common[1]
    for i in range(begin, end):
        k = np.uint64(i)
        zs[k], squares[k] = z[k], n[k]


@inlined
def _gather_inputs(columns, reads, scratch, singles, fixed, count):  # type: ignore[no-untyped-def]
    """Leave z and n of all inputs; singles, fixed: where those of every example begin and end."""
    _gather_common(scratch, 0, 1)
    _gather(columns, reads, scratch, 1, singles)
    _gather_common(scratch, singles, fixed)
    _gather(columns, reads, scratch, fixed, count)


@inlined
def _scatter_common(scratch, begin, end):  # type: ignore[no-untyped-def]
    zs, squares, live, common = scratch.zs, scratch.squares, scratch.live[0], scratch.common
    z, n, more_z, more_n = common[0], common[1], common[2], common[3]
    zero = np.float32(0.0)
    for i in range(begin, end):
        k = np.uint64(i)
        z_gain, n_gain = (zs[k], squares[k]) if live[k] else (zero, zero)
        z[k] += z_gain
        n[k] += n_gain
        more_z[k] += z_gain
        more_n[k] += n_gain


@inlined
def _put_common(columns, gaining, features, labelled, begin, end, scratch):  # type: ignore[no-untyped-def]
    """Write the copied rows back, with examples [begin, end) counted."""
    if end <= begin:
        return
    shows, clicks, first = counts_of(labelled, begin)
    last = first
    for i in range(begin + 1, end):
        more_shows, more_clicks, second = counts_of(labelled, i)
        shows, clicks = shows + more_shows, clicks + more_clicks
        first, last = min(first, second), max(last, second)
    common = scratch.common
    for k in range(1 + features.number_ids.shape[0]):
        at, _ = common_input(features, k)
        if scratch.live[0, at]:
            place = scratch.places[0, at]
            for i in range(2):
                columns.values[place, i] = common[i, at]
                gaining.values[place, i] = common[2 + i, at]
            count_row(columns, gaining, place, shows, clicks, first)
            count_row(columns, gaining, place, 0, 0, last)


@kernel
def learn(  # type: ignore[no-untyped-def]
    columns,
    gaining,
    active,
    ftrl,
    program,
    memory,
    window_ms,
    gate,
    features,
    labelled,
    scratch,
    scores,
    first,
):
    """Score into `scores`, then learn, each slate of a batch in turn. The caller made room.

    first: the example to begin with, for a learner that holds only some rows; None for all rows.
    Return how many of the batch are learned: all, or those before a slate in which a statistic has
    a row that must be fetched first.
    """
    shift, examples = shift_of(active.shape[0]), features.ids.shape[0]
    if not examples:
        return examples
    singles = 1 + features.ids.shape[1]
    fixed = singles + features.number_ids.shape[0]
    find_common(columns, active, shift, features, scratch)
    _take_common(columns, gaining, features, scratch)
    learned = end = begin_at(first)
    while learned < examples:
        if learned == end:
            begin, end = end, part_end(labelled.ends, end, BLOCK)
            find_block(columns, active, shift, gate, features, begin, end, scratch)
        stop, unseen, lacks = labelled.ends[learned], 0, False
        together = stop - learned > 1
        for i in range(learned, stop):
            row = i - begin
            count, unseen = find_example(
                *(columns, active, shift, program, memory, window_ms, gate),
                *(features, labelled, i, scratch, row, first),
            )
            if first is not None and count < 0:
                lacks = True
                break
            reads = scratch.reads if unseen else scratch.places[row]
            _gather_inputs(columns, reads, scratch, singles, fixed, count)
            scores[i] = _forward(ftrl, scratch, row, count)
        if lacks:
            break
        if together:
            compete(labelled, scores, learned, stop)
            admit_slate(columns, gate, labelled, learned, stop, scratch, learned - begin)
        for i in range(learned, stop):
            row, count = i - begin, scratch.totals[i - begin]
            if together:
                find_again(columns, gate, labelled, i, scratch, row)
                _gather_inputs(columns, scratch.places[row], scratch, singles, fixed, count)
                _weigh(ftrl, scratch, count)
            elif unseen:
                settle_unseen(columns, gate, labelled, i, unseen, True, scratch, row)
            slope = slope_of(labelled, i, scores[i]) * weight_of(labelled, i)
            _step(ftrl, slope, scratch, row, count, together, i + 1 < stop)
            counted = counts_of(labelled, i)
            _scatter_common(scratch, 0, 1)
            _scatter(columns, gaining, counted, scratch, row, 1, singles)
            _scatter_common(scratch, singles, fixed)
            _scatter(columns, gaining, counted, scratch, row, fixed, count)
        learned = stop
    _put_common(columns, gaining, features, labelled, begin_at(first), learned, scratch)
    return learned


@kernel
def predict(columns, ftrl, program, gate, features, event_ms, scratch, scores):  # type: ignore[no-untyped-def]
    """Write the probability of a click of each row of `features` to `scores`. Adds no row."""
    for i in range(features.ids.shape[0]):
        count, unseen = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
        reads = scratch.reads if unseen else scratch.places[0]
        _gather(columns, reads, scratch, 0, count)
        scores[i] = _forward(ftrl, scratch, 0, count)


@kernel
def contribute(  # type: ignore[no-untyped-def]
    columns,
    ftrl,
    program,
    gate,
    features,
    event_ms,
    scratch,
    of_number,
    sums,  # noqa: ARG001
    parts,
    pairs,  # noqa: ARG001
):
    """Add the terms of each row's log-odds to its `parts`, shape (n, parts). Adds no row.

    of_number: (1024,) part by the number of a field; sums, pairs: for factorization machines.
    """
    for i in range(parts.shape[0]):
        count, unseen = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
        reads = scratch.reads if unseen else scratch.places[0]
        _gather(columns, reads, scratch, 0, count)
        _weigh(ftrl, scratch, count)
        for k in range(count):
            part = of_number[scratch.ids[0, k] & NUMBER_BITS]
            parts[i, part] += scratch.weights[k] * scratch.x[0, k]
