"""The kernels of the factorization machine: forward and step, slate by slate, compiled.

Rendle, "Factorization Machines", ICDM 2010. The sum of all pairs of inputs costs as much as the
inputs alone (lemma 3.1); its derivative by a coordinate is eq. (4). The intercept is w0 of eq. (1):
it has a weight, and is part of no pair.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.inputs.example_inputs import (
    BLOCK,
    admit_slate,
    begin_at,
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
from headrace.learner.inputs.learned_weights import slope_items, weigh_items
from headrace.learner.inputs.slates import part_end
from headrace.learner.intrinsics.simd import LANES, add, eight, put, take
from headrace.learner.kernels.initialization import origin
from headrace.learner.kernels.loss import compete, probability_of, slope_of
from headrace.learner.kernels.optimizers import begin_step, shrink_of, step_at, takes_sums
from headrace.learner.kernels.row_counters import count_row
from headrace.learner.kernels.row_ids import NUMBER_BITS
from headrace.learner.kernels.row_lookup import shift_of
from headrace.learner.kernels.row_values import NOT_LEARNED, read_id, read_weight, value_at
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel

Floats = npt.NDArray[np.float32]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class FactorizationScratch(NamedTuple):
    """Working memory of a block of examples, beside `InputScratch`."""

    vectors: Floats  # (block, inputs, d) that an example is predicted from
    linear: Floats  # (block, inputs) weights likewise
    totals: Floats  # (block, d) sum of the inputs' vectors, each times its value
    squares: Floats  # (d,) sum of the squares of the same
    gradients: Floats  # (inputs, d) of a slate, by vectors that are not stepped yet
    last_seen: npt.NDArray[np.int64]  # (inputs,) before the slate, of these rows; -1 elsewhere


@inlined
def _add_input(row, there, begun, machine, shrink, x, total, squares, vector, at):  # type: ignore[no-untyped-def]
    """Read coordinates of the vector of an input, and add them to the sums."""
    value = value_at(row, there, machine, begun, shrink, at)
    put(vector, 0, at, value)
    part_of = value * x
    add(total, 0, at, part_of)
    add(squares, 0, at, part_of * part_of)


@inlined_ieee_division
def _forward(columns, machine, gate, reads, now_s, scratch, work, row, count):  # type: ignore[no-untyped-def]
    """Return the probability of a click; leave the vectors and their sum in `work`."""
    ids, x, total, squares = scratch.ids[row], scratch.x[row], work.totals[row], work.squares
    values, seen, vectors = columns.values, columns.last_seen, work.vectors[row]
    dimensions = machine.vectors.coordinates
    whole = dimensions - dimensions % LANES
    linear = pairs = 0.0
    for f in range(dimensions):
        total[f] = squares[f] = _ZERO
    for k in range(count):
        place = reads[k]
        there = place >= 0
        last_seen = seen[place] if there else np.uint32(0)
        shrink = shrink_of(machine.weights, last_seen, now_s)
        work.linear[row, k] = read_weight(values, machine, place, shrink)
        linear += work.linear[row, k] * x[k]
        if k == 0 or dimensions == 0:
            continue
        shrink = shrink_of(machine.vectors, last_seen, now_s)
        begun = origin(read_id(columns, gate, place, ids[k]), machine.seed)
        taken, vector = row_of(values, max(place, 0)), row_of(vectors, k)
        for f in range(0, whole, LANES):
            _add_input(taken, there, begun, machine, shrink, x[k], total, squares, vector, eight(f))
        for f in range(whole, dimensions):
            _add_input(taken, there, begun, machine, shrink, x[k], total, squares, vector, f)
    for f in range(dimensions):
        pairs += total[f] * total[f] - squares[f]
    return probability_of(linear + 0.5 * pairs + machine.offset)


@inlined
def _gradient(scaled, x, total, vector, at):  # type: ignore[no-untyped-def]
    """Return the gradient by coordinates of the vector of an input: eq. (4)."""
    return scaled * (take(total, 0, at) - take(vector, 0, at) * x)


@inlined
def _sum_gradients(scaled, x, total, vector, summed):  # type: ignore[no-untyped-def]
    """Add the gradients by the vector of an input to the sum that its row is stepped by later."""
    whole = summed.shape[0] - summed.shape[0] % LANES
    for f in range(0, whole, LANES):
        add(summed, 0, eight(f), _gradient(scaled, x, total, vector, eight(f)))
    for f in range(whole, summed.shape[0]):
        add(summed, 0, f, _gradient(scaled, x, total, vector, f))


@inlined
def _step_vector(taken, gained, group, shrink, parts, scaled, x, total, vector, summed, waited):  # type: ignore[no-untyped-def]
    """Step the vector of an input by its gradients, and by those summed before if there are any."""
    whole = vector.shape[0] - vector.shape[0] % LANES
    for f in range(0, whole, LANES):
        gradient = _gradient(scaled, x, total, vector, eight(f))
        if waited:
            gradient += take(summed, 0, eight(f))
        step_at(taken, gained, group, shrink, parts, eight(f), gradient)
    for f in range(whole, vector.shape[0]):
        gradient = _gradient(scaled, x, total, vector, f)
        if waited:
            gradient += take(summed, 0, f)
        step_at(taken, gained, group, shrink, parts, f, gradient)
    if waited:
        for f in range(vector.shape[0]):
            summed[f] = _ZERO


@inlined_ieee_division
def _step(columns, gaining, machine, slope, counted, scratch, work, row, count, more):  # type: ignore[no-untyped-def]
    """Step and count the rows of one example, in the view and in what is pending.

    more: whether a next example of its slate may share rows with it, which it then steps.
    """
    values, more_values, seen = columns.values, gaining.values, columns.last_seen
    places, live, x = scratch.places[row], scratch.live[row], scratch.x[row]
    vectors, total, dimensions = work.vectors[row], work.totals[row], machine.vectors.coordinates
    shows, clicks, second = counted
    following = inputs_of_next(scratch, row, count, more)
    for k in range(count):
        if not live[k]:
            continue
        place, scaled, vector = places[k], np.float32(slope) * x[k], row_of(vectors, k)
        last_seen = seen[place]
        waited = work.last_seen[k] >= 0
        if waited:
            last_seen = np.uint32(work.last_seen[k])
        count_row(columns, gaining, place, shows, clicks, second)
        later = k < following and is_stepped_later(scratch, row, k)
        work.last_seen[k] = np.int64(last_seen) if later else -1
        taken, gained, group = row_of(values, place), row_of(more_values, place), machine.weights
        if later and takes_sums(group):
            scratch.gradients[k] += scaled
        else:
            shrink, parts = shrink_of(group, last_seen, second), begin_step(taken, gained, group)
            step_at(taken, gained, group, shrink, parts, 0, scratch.gradients[k] + scaled)
            scratch.gradients[k] = _ZERO
        if k == 0 or dimensions == 0:
            continue
        group, summed = machine.vectors, row_of(work.gradients, k)
        if later and takes_sums(group):
            _sum_gradients(scaled, x[k], total, vector, summed)
        else:
            shrink, parts = shrink_of(group, last_seen, second), begin_step(taken, gained, group)
            _step_vector(
                *(taken, gained, group, shrink, parts),
                *(scaled, x[k], total, vector, summed, waited),
            )


@inlined
def _step_items(columns, gaining, machine, slope, features, i, scratch, work, row):  # type: ignore[no-untyped-def]
    """Step the importances of the items of example i, whose rows are counted already."""
    poolings, offsets = machine.poolings, features.bag_offsets
    bags = poolings.shape[0]
    for b in range(bags):
        if poolings[b] == NOT_LEARNED:
            continue
        x, q, linear, total = scratch.x[row], scratch.zs, work.linear[row], work.totals[row]
        first = 1 + features.ids.shape[1] + features.number_ids.shape[0] - offsets[i * bags]
        begin, end = first + offsets[i * bags + b], first + offsets[i * bags + b + 1]
        for k in range(begin, end):
            derivative = linear[k]
            for f in range(total.shape[0]):
                derivative += work.vectors[row, k, f] * (total[f] - work.vectors[row, k, f] * x[k])
            q[k] = np.float32(slope) * x[k] * derivative
        slope_items(poolings[b], x, q, begin, end)
        for k in range(begin, end):
            if scratch.live[row, k]:
                place = scratch.places[row, k]
                taken, more = row_of(columns.values, place), row_of(gaining.values, place)
                parts = begin_step(taken, more, machine.items)
                step_at(taken, more, machine.items, _ONE, parts, 0, q[k])


@kernel
def learn(  # type: ignore[no-untyped-def]
    columns,
    gaining,
    active,
    machine,
    program,
    memory,
    window_ms,
    gate,
    features,
    labelled,
    scratch,
    work,
    scores,
    first,
):
    """Score into `scores`, then learn, each slate of a batch in turn. The caller made room.

    first: the example to begin with, for a learner that holds only some rows; None for all rows.
    Return how many of the batch are learned: all, or those before a slate in which a statistic has
    a row that must be fetched first.
    """
    shift, examples = shift_of(active.shape[0]), features.ids.shape[0]
    if examples:
        find_common(columns, active, shift, features, scratch)
    learned = end = begin_at(first)
    while learned < examples:
        if learned == end:
            begin, end = end, part_end(labelled.ends, end, BLOCK)
            find_block(columns, active, shift, gate, features, begin, end, scratch)
        stop, unseen = labelled.ends[learned], 0
        together = stop - learned > 1
        for i in range(learned, stop):
            row, (_, _, second) = i - begin, counts_of(labelled, i)
            count, unseen = find_example(
                *(columns, active, shift, program, memory, window_ms, gate),
                *(features, labelled, i, scratch, row, first),
            )
            if first is not None and count < 0:
                return learned
            reads = scratch.reads if unseen else scratch.places[row]
            weigh_items(columns.values, machine, features, i, reads, scratch, row)
            scores[i] = _forward(columns, machine, gate, reads, second, scratch, work, row, count)
        if together:
            compete(labelled, scores, learned, stop)
            admit_slate(columns, gate, labelled, learned, stop, scratch, learned - begin)
        for i in range(learned, stop):
            row = i - begin
            if together:
                find_again(columns, gate, labelled, i, scratch, row)
            elif unseen:
                settle_unseen(columns, gate, labelled, i, unseen, True, scratch, row)
            slope = slope_of(labelled, i, scores[i])
            slope, counted = slope * weight_of(labelled, i), counts_of(labelled, i)
            count = scratch.totals[row]
            more = i + 1 < stop
            _step(columns, gaining, machine, slope, counted, scratch, work, row, count, more)
            _step_items(columns, gaining, machine, slope, features, i, scratch, work, row)
        learned = stop
    return learned


@kernel
def predict(columns, machine, program, gate, features, event_ms, scratch, work, scores):  # type: ignore[no-untyped-def]
    """Write the probability of a click of each row of `features` to `scores`. Adds no row."""
    for i in range(features.ids.shape[0]):
        count, unseen = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
        reads = scratch.reads if unseen else scratch.places[0]
        weigh_items(columns.values, machine, features, i, reads, scratch, 0)
        second = np.uint32(event_ms[i] // 1000)
        scores[i] = _forward(columns, machine, gate, reads, second, scratch, work, 0, count)


@kernel
def contribute(  # type: ignore[no-untyped-def]
    columns,
    machine,
    program,
    gate,
    features,
    event_ms,
    scratch,
    work,
    of_number,
    sums,
    parts,
    pairs,
):
    """Add the terms of each row's log-odds to `parts` and to the upper triangle of `pairs`.

    of_number: (1024,) part by the number of a field; sums: (parts, d), working memory; parts:
    (n, parts); pairs: (n, parts, parts).
    Adds no row.
    """
    count_parts, dimensions = parts.shape[1], machine.vectors.coordinates
    for i in range(parts.shape[0]):
        count, unseen = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
        reads, second = scratch.reads if unseen else scratch.places[0], event_ms[i] // 1000
        second = np.uint32(second)
        weigh_items(columns.values, machine, features, i, reads, scratch, 0)
        _forward(columns, machine, gate, reads, second, scratch, work, 0, count)
        x, vectors = scratch.x[0], work.vectors[0]
        for a in range(count_parts):
            for f in range(dimensions):
                sums[a, f] = 0.0
        for k in range(count):
            place, part = reads[k], of_number[scratch.ids[0, k] & NUMBER_BITS]
            last_seen = columns.last_seen[place] if place >= 0 else np.uint32(0)
            shrink = shrink_of(machine.weights, last_seen, second)
            parts[i, part] += read_weight(columns.values, machine, place, shrink) * x[k]
            if k > 0:
                for f in range(dimensions):
                    own = np.float64(vectors[k, f] * x[k])
                    pairs[i, part, part] -= 0.5 * own * own
                    sums[part, f] += own
        for a in range(count_parts):
            for b in range(a, count_parts):
                share = 0.5 if a == b else 1.0
                for f in range(dimensions):
                    pairs[i, a, b] += share * sums[a, f] * sums[b, f]
