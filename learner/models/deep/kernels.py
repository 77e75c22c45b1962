"""Gathers the rows of a mini-batch for the network of a deep model, and counts its examples.

The network (learner.models.deep.deep_model) sees dense arrays alone. Three things have to be exact
slate by slate: statistics of rows, which depend on the counters that the slate before raised;
admission; and the counters themselves. Weights and vectors are read as they were before the
mini-batch, and every row is stepped once, by the sum of its gradients
(learner.models.deep.gradient_kernels).

An input has a *position* in the arrays: first the fixed inputs (intercept, fields, numbers,
statistics) example by example, then the items of bags. A row that the mini-batch names has a
*turn*: its number in the order in which rows were first named.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.inputs.example_inputs import (
    BLOCK,
    admit_slate,
    counts_of,
    find_again,
    find_block,
    find_candidate,
    find_common,
    find_example,
    settle_unseen,
)
from headrace.learner.inputs.learned_weights import weigh_items
from headrace.learner.inputs.slates import part_end
from headrace.learner.intrinsics.simd import LANES, eight, put, take
from headrace.learner.kernels.loss import probability_of
from headrace.learner.kernels.optimizers import shrink_of
from headrace.learner.kernels.row_counters import count_row
from headrace.learner.kernels.row_lookup import shift_of
from headrace.learner.kernels.row_values import read_id, read_vector, read_weight
from headrace.pserver.intrinsics.row_prefetch import prefetch
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, kernel

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


class GatheredInputs(NamedTuple):
    """The network's inputs for a mini-batch of n examples with K fixed inputs each."""

    weights: Floats  # (n K + items,) each times the value of its input
    vectors: Floats  # (n (K - 1) + items, d) likewise; the intercept has none
    x: Floats  # (n K + items,) value of the input, 1 for an id
    targets: Integers  # (n K + items,) turn of the row that is stepped, -1 where none is


class InputGradients(NamedTuple):
    """Gradients of the loss by gathered inputs: the fixed ones, and the items of bags."""

    weights: Floats  # (n K,)
    vectors: Floats  # (n (K - 1), d)
    item_weights: Floats  # (items,)
    item_vectors: Floats  # (items, d)


class Turns(NamedTuple):
    """The rows that a mini-batch names, in the order in which they were named."""

    turn_of: npt.NDArray[np.int32]  # (capacity,) by place in the view, -1 where not named
    places: Integers  # (rows,)
    read: npt.NDArray[np.bool_]  # (rows,) whether weight and vector were read
    stepped: npt.NDArray[np.bool_]  # (rows,) whether an example that names it counts in it
    weight: Floats  # (rows, 1) as they stood before the mini-batch
    vector: Floats  # (rows, d)
    last_seen: npt.NDArray[np.uint32]  # (rows,) before the mini-batch: decay is due from then on
    first_seen: npt.NDArray[np.uint32]  # (rows,) before the mini-batch
    pending: npt.NDArray[np.uint32]  # (rows, 4) shows, clicks, since, last_seen, likewise
    weight_gradient: Floats  # (rows, 1)
    vector_gradient: Floats  # (rows, d)
    item_gradient: Floats  # (rows, 1) by the importance in a bag
    count: Integers  # type: ignore[assignment]  # (1,)


class BatchSpan(NamedTuple):
    """A range of examples of a batch, and their fixed inputs without statistics."""

    begin: int
    end: int
    fixed: int


@inlined
def _turn(columns, gaining, turns, place):  # type: ignore[no-untyped-def]
    """Return the turn of the row at `place`, giving it one if it is named for the first time."""
    turn = turns.turn_of[place]
    if turn >= 0:
        return np.int64(turn)
    turn = turns.count[0]
    turns.count[0] += 1
    turns.turn_of[place] = np.int32(turn)
    turns.places[turn] = place
    turns.read[turn] = turns.stepped[turn] = False
    turns.last_seen[turn] = columns.last_seen[place]
    turns.first_seen[turn] = columns.first_seen[place]
    pending = row_of(turns.pending, turn)
    pending[0], pending[1] = gaining.shows[place], gaining.clicks[place]
    pending[2], pending[3] = gaining.since[place], gaining.last_seen[place]
    turns.weight_gradient[turn, 0] = turns.item_gradient[turn, 0] = _ZERO
    gradient = row_of(turns.vector_gradient, turn)
    for f in range(gradient.shape[0]):
        gradient[f] = _ZERO
    return np.int64(turn)


@inlined
def _fetch_turns(turn_of, scratch, row):  # type: ignore[no-untyped-def]
    """Prefetch the turns of the rows of one example."""
    places = scratch.places[row]
    for k in range(scratch.counts[row]):
        prefetch(turn_of, max(places[k], 0))


@inlined
def _position(k, i, fixed, items, each, first_item, examples):  # type: ignore[no-untyped-def]
    """Return the position of input k of example i of the mini-batch, and that of its vector.

    learner.inputs.example_inputs has the order of inputs; the intercept, input 0, has no vector.
    """
    if fixed <= k < fixed + items:
        at = first_item + k - fixed
        return at, at - examples
    at = i * each + k
    if k >= fixed:
        at -= items
    return at, at - i - 1


@inlined
def _read_row(columns, parameters, turns, turn, place, now_s):  # type: ignore[no-untyped-def]
    """Read weight and vector of a row that is named for the first time."""
    turns.read[turn] = True
    values, last_seen = columns.values, turns.last_seen[turn]
    shrink = shrink_of(parameters.weights, last_seen, now_s)
    turns.weight[turn, 0] = read_weight(values, parameters, place, shrink)
    vector, shrink = row_of(turns.vector, turn), shrink_of(parameters.vectors, last_seen, now_s)
    read_vector(values, parameters, place, columns.ids[place], shrink, vector)


@inlined
def _times(vector, x, product):  # type: ignore[no-untyped-def]
    count = vector.shape[0]
    whole = count - count % LANES
    for f in range(0, whole, LANES):
        put(product, 0, eight(f), take(vector, 0, eight(f)) * x)
    for f in range(whole, count):
        product[f] = vector[f] * x


@inlined
def _read_inputs(  # type: ignore[no-untyped-def]
    columns, gaining, parameters, gate, reads, second, scratch, turns, gathered, row, count, where
):
    """Write the values of one example's inputs; where: see `_position`."""
    for k in range(count):
        at, vector_at = _position(k, *where)
        place, x = reads[k], scratch.x[row, k]
        gathered.x[at] = x
        if place < 0:
            gathered.weights[at] = _ZERO
            if k:
                row_id = read_id(columns, gate, place, scratch.ids[row, k])
                vector = row_of(gathered.vectors, vector_at)
                read_vector(columns.values, parameters, place, row_id, _ONE, vector)
                _times(vector, x, vector)
            continue
        turn = _turn(columns, gaining, turns, place)
        if not turns.read[turn]:
            _read_row(columns, parameters, turns, turn, place, second)
        gathered.weights[at] = turns.weight[turn, 0] * x
        if k:
            _times(row_of(turns.vector, turn), x, row_of(gathered.vectors, vector_at))


@inlined
def _count_inputs(  # type: ignore[no-untyped-def]
    columns, gaining, counted, scratch, turns, gathered, row, count, where
):
    """Count one example in its rows, and write which rows are to be stepped."""
    shows, clicks, second = counted
    for k in range(count):
        at, _ = _position(k, *where)
        gathered.targets[at] = -1
        if scratch.live[row, k]:
            place = scratch.places[row, k]
            gathered.targets[at] = _turn(columns, gaining, turns, place)
            count_row(columns, gaining, place, shows, clicks, second)


@kernel
def gather(  # type: ignore[no-untyped-def]
    columns,
    gaining,
    active,
    parameters,
    program,
    memory,
    window_ms,
    gate,
    features,
    labelled,
    span,
    scratch,
    turns,
    gathered,
    first=None,
):
    """Write the network's inputs for examples [begin, end), and count these in their rows.

    The caller made room. `first`, if not None: the example to begin with, because those before it
    are gathered already. Then it stops before a slate in which the row of a statistic is missing;
    the ids are in the scratch. Returns the example it stopped before, or the end.
    """
    each, shift = span.fixed + program.numbers.shape[0], shift_of(active.shape[0])
    examples = span.end - span.begin
    start = span.begin if first is None else first
    item_position = examples * each + _items_between(features, span.begin, start)
    if examples:
        find_common(columns, active, shift, features, scratch)
    done = end = start
    while done < span.end:
        if done == end:
            begin, end = end, part_end(labelled.ends, end, BLOCK)
            find_block(columns, active, shift, gate, features, begin, end, scratch)
            for row in range(end - begin):
                _fetch_turns(turns.turn_of, scratch, row)
        stop, unseen, at = labelled.ends[done], 0, item_position
        together = stop - done > 1
        for i in range(done, stop):
            row, (_, _, second) = i - begin, counts_of(labelled, i)
            items = scratch.counts[row] - span.fixed
            count, unseen = find_example(
                *(columns, active, shift, program, memory, window_ms, gate),
                *(features, labelled, i, scratch, row, first),
            )
            if first is not None and count < 0:
                return done
            reads = scratch.reads if unseen else scratch.places[row]
            where = (i - span.begin, span.fixed, items, each, at, examples)
            weigh_items(columns.values, parameters, features, i, reads, scratch, row)
            _read_inputs(
                *(columns, gaining, parameters, gate, reads, second, scratch, turns),
                *(gathered, row, count, where),
            )
            at += items
        if together:
            admit_slate(columns, gate, labelled, done, stop, scratch, done - begin)
        for i in range(done, stop):
            row, counted = i - begin, counts_of(labelled, i)
            items, count = scratch.counts[row] - span.fixed, scratch.totals[row]
            where = (i - span.begin, span.fixed, items, each, item_position, examples)
            if together:
                find_again(columns, gate, labelled, i, scratch, row)
            elif unseen:
                settle_unseen(columns, gate, labelled, i, unseen, True, scratch, row)
            _count_inputs(columns, gaining, counted, scratch, turns, gathered, row, count, where)
            item_position += items
        done = stop
    return span.end


@inlined
def _items_between(features, begin, end):  # type: ignore[no-untyped-def]
    """Return the number of items in the bags of examples [begin, end)."""
    bags = (features.bag_offsets.shape[0] - 1) // max(1, features.ids.shape[0])
    return features.bag_offsets[end * bags] - features.bag_offsets[begin * bags]


@kernel
def look_up(  # type: ignore[no-untyped-def]
    columns, parameters, program, gate, features, event_ms, fixed, scratch, gathered
):
    """Write the network's inputs for each row of `features`. Adds no row."""
    examples, each = features.ids.shape[0], fixed + program.numbers.shape[0]
    item_position = examples * each
    for i in range(examples):
        count, unseen = find_candidate(columns, program, gate, features, event_ms[i], i, scratch)
        items = count - each
        reads = scratch.reads if unseen else scratch.places[0]
        weigh_items(columns.values, parameters, features, i, reads, scratch, 0)
        second = np.uint32(event_ms[i] // 1000)
        for k in range(count):
            at, vector_at = _position(k, i, fixed, items, each, item_position, examples)
            place, x = reads[k], scratch.x[0, k]
            last_seen = columns.last_seen[place] if place >= 0 else np.uint32(0)
            shrink = shrink_of(parameters.weights, last_seen, second)
            weight = read_weight(columns.values, parameters, place, shrink)
            gathered.weights[at] = weight * x
            if k == 0:
                continue
            row_id = read_id(columns, gate, place, scratch.ids[0, k])
            shrink = shrink_of(parameters.vectors, last_seen, second)
            vector = row_of(gathered.vectors, vector_at)
            read_vector(columns.values, parameters, place, row_id, shrink, vector)
            _times(vector, x, vector)
        item_position += items


def probabilities(
    log_odds: npt.NDArray[np.float32], offset: float = 0.0
) -> npt.NDArray[np.float64]:
    """Return the probability of a click of each example; (n,). offset: added to all log-odds."""
    out = np.empty(log_odds.shape[0])
    _make(np.ascontiguousarray(log_odds), offset, out)
    return out


@kernel
def _make(log_odds, offset, out):  # type: ignore[no-untyped-def]
    for i in range(out.shape[0]):
        out[i] = probability_of(np.float64(log_odds[i]) + offset)
