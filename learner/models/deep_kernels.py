"""The kernels of deep models: rows gathered for a mini-batch, gradients added to rows.

Between the two lies a network (learner.models.deep), which sees dense arrays alone. What has to be
exact example by example is: statistics of rows, which depend on the counters that the example
before raised, admission, and the counters themselves. Weights and vectors are read as they stood
before the mini-batch, and every row is stepped once, by the sum of its gradients.

An input has a *position* in the arrays: the fixed ones (intercept, fields, numbers, statistics)
example by example, then the items of bags. A row that the mini-batch names has a *turn*: its number
in the order in which rows were first named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest.compiled import kernel, part
from learner.initial import initial, origin
from learner.inputs import (
    BLOCK,
    counts_of,
    find_asked,
    find_block,
    find_example,
    settle_strangers,
    shift_of,
)
from learner.optimizers import gained_of, shrink_of, step_row
from learner.row_counters import count_row
from learner.row_values import read_id, read_vector, read_weight
from learner.statistics import mix
from pserver.table import find, find_or_add

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Integers = npt.NDArray[np.int64]

DENSE_NUMBER = 1001
"""Field number of the rows that hold layers."""

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_DENSE = np.uint64(DENSE_NUMBER)
_NUMBERS = np.uint64(1023)
_LAYERS = np.uint64(0x2545F4914F6CDD1D)
"""An arbitrary constant: what the ids of chunks are drawn from."""


class Gathered(NamedTuple):
    """What the network is given of a mini-batch of n examples with K fixed inputs each."""

    weights: Floats  # (n K + items,)
    vectors: Floats  # (n K + items, d)
    x: Floats  # (n K + items,) value of the input, 1 for an id
    targets: Integers  # (n K + items,) turn of the row that is stepped, -1 where none is


class Turns(NamedTuple):
    """The rows that a mini-batch names, in the order in which they were named."""

    turn_of: npt.NDArray[np.int32]  # (capacity,) by place in the view, -1 where not named
    places: Integers  # (rows,)
    weight_shrink: Floats  # (rows,) what decay left of what they had gained
    vector_shrink: Floats  # (rows,)
    weight_gradient: Floats  # (rows, 1)
    vector_gradient: Floats  # (rows, d)
    count: Integers  # type: ignore[assignment]  # (1,)
    one: Floats  # (1,) working memory


class Span(NamedTuple):
    """Which examples of a batch, and how many fixed inputs each has, statistics aside."""

    begin: int
    end: int
    fixed: int


@part
def _turn(columns, parameters, turns, place, now_s):  # type: ignore[no-untyped-def]
    """Return the turn of the row at `place`, giving it one if it is named for the first time."""
    turn = turns.turn_of[place]
    if turn >= 0:
        return np.int64(turn)
    turn = turns.count[0]
    turns.count[0] += 1
    turns.turn_of[place] = np.int32(turn)
    turns.places[turn] = place
    last_seen = columns.last_seen[place]
    turns.weight_shrink[turn] = shrink_of(parameters.weights, last_seen, now_s)
    turns.vector_shrink[turn] = shrink_of(parameters.vectors, last_seen, now_s)
    turns.weight_gradient[turn, 0] = _ZERO
    for f in range(parameters.vectors.coordinates):
        turns.vector_gradient[turn, f] = _ZERO
    return np.int64(turn)


@part
def _position(k, i, fixed, items, each, first_item):  # type: ignore[no-untyped-def]
    """Return the position of input k of example i of the mini-batch (see `list_fixed`)."""
    if k < fixed:
        return i * each + k
    if k < fixed + items:
        return first_item + k - fixed
    return i * each + k - items


@part
def _read_inputs(  # type: ignore[no-untyped-def]
    columns, parameters, gate, reads, second, scratch, turns, gathered, row, count, where
):
    """Write values and weights and vectors of one example's inputs; where: see `_position`."""
    for k in range(count):
        at, place = _position(k, *where), reads[k]
        weight_shrink = vector_shrink = _ONE
        if place >= 0:
            turn = _turn(columns, parameters, turns, place, second)
            weight_shrink = turns.weight_shrink[turn]
            vector_shrink = turns.vector_shrink[turn]
        row_id = read_id(columns, gate, place, scratch.ids[row, k])
        values, vector = columns.values, gathered.vectors[at]
        gathered.weights[at] = read_weight(values, parameters, place, weight_shrink, turns.one)
        read_vector(values, parameters, place, row_id, vector_shrink, vector)
        gathered.x[at] = scratch.x[row, k]


@part
def _count_inputs(  # type: ignore[no-untyped-def]
    columns, gaining, parameters, counted, scratch, turns, gathered, row, count, where
):
    """Count one example in its rows, and write which rows are to be stepped."""
    shows, clicks, second = counted
    for k in range(count):
        at = _position(k, *where)
        gathered.targets[at] = -1
        if scratch.live[row, k]:
            place = scratch.places[row, k]
            gathered.targets[at] = _turn(columns, parameters, turns, place, second)
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
):
    """Write what the network needs of examples [begin, end), and count them in their rows.

    The caller made room.
    """
    each, shift = span.fixed + program.numbers.shape[0], shift_of(active.shape[0])
    item_position = (span.end - span.begin) * each
    for begin in range(span.begin, span.end, BLOCK):
        end = min(begin + BLOCK, span.end)
        find_block(columns, gaining, active, shift, gate, features, begin, end, scratch)
        for i in range(begin, end):
            row = i - begin
            items = scratch.counts[row] - span.fixed
            count, strangers = find_example(
                *(columns, active, shift, program, memory, window_ms, gate),
                *(features, labelled, i, scratch, row),
            )
            reads = scratch.reads if strangers else scratch.places[row]
            counted = counts_of(labelled, i)
            where = (i - span.begin, span.fixed, items, each, item_position)
            _read_inputs(
                *(columns, parameters, gate, reads, counted[2], scratch, turns, gathered),
                *(row, count, where),
            )
            if strangers:
                settle_strangers(columns, gate, labelled, i, strangers, scratch, row)
            _count_inputs(
                columns, gaining, parameters, counted, scratch, turns, gathered, row, count, where
            )
            item_position += items


@kernel
def scatter(  # type: ignore[no-untyped-def]
    columns, gaining, parameters, turns, gathered, weight_gradients, vector_gradients
):
    """Step every row that was named, by the sum of its gradients, each row once."""
    targets, dimensions = gathered.targets, parameters.vectors.coordinates
    stepped = turns.turn_of
    for at in range(targets.shape[0]):
        turn = targets[at]
        if turn < 0:
            continue
        stepped[turns.places[turn]] = -2  # named by somebody who counts in it
        turns.weight_gradient[turn, 0] += weight_gradients[at]
        for f in range(dimensions):
            turns.vector_gradient[turn, f] += vector_gradients[at, f]
    values, more = columns.values, gaining.values
    for turn in range(turns.count[0]):
        place = turns.places[turn]
        if stepped[place] == -2:
            shrink = turns.weight_shrink[turn]
            step_row(values, more, place, parameters.weights, shrink, turns.weight_gradient[turn])
            shrink = turns.vector_shrink[turn]
            step_row(values, more, place, parameters.vectors, shrink, turns.vector_gradient[turn])
        stepped[place] = -1
    turns.count[0] = 0


@kernel
def look_up(  # type: ignore[no-untyped-def]
    columns, parameters, program, gate, features, event_ms, fixed, scratch, one, gathered
):
    """Write what the network needs to predict each row of `features`. Adds no row."""
    examples, each = features.ids.shape[0], fixed + program.numbers.shape[0]
    item_position = examples * each
    for i in range(examples):
        count, strangers = find_asked(columns, program, gate, features, event_ms[i], i, scratch)
        items = count - each
        reads = scratch.reads if strangers else scratch.places[0]
        second = np.uint32(event_ms[i] // 1000)
        for k in range(count):
            at, place = _position(k, i, fixed, items, each, item_position), reads[k]
            last_seen = columns.last_seen[place] if place >= 0 else np.uint32(0)
            row_id = read_id(columns, gate, place, scratch.ids[0, k])
            shrink = shrink_of(parameters.weights, last_seen, second)
            gathered.weights[at] = read_weight(columns.values, parameters, place, shrink, one)
            shrink = shrink_of(parameters.vectors, last_seen, second)
            vector = gathered.vectors[at]
            read_vector(columns.values, parameters, place, row_id, shrink, vector)
            gathered.x[at] = scratch.x[0, k]
        item_position += items


@kernel
def begin_layers(seed, bounds, ids, begun):  # type: ignore[no-untyped-def]
    """Write the ids of the chunks, and add to `begun` what each coordinate begins with.

    bounds, begun: (chunks, coordinates); what begins with zero, or one, has a bound of 0.
    """
    start = origin(_LAYERS, seed)
    for i in range(ids.shape[0]):
        ids[i] = (mix(_LAYERS + np.uint64(i)) & ~_NUMBERS) | _DENSE
        for k in range(bounds.shape[1]):
            begun[i, k] += initial(start, i * bounds.shape[1] + k, bounds[i, k])


@kernel
def read_layers(columns, group, ids, begun, now_s, shrinks, layers):  # type: ignore[no-untyped-def]
    """Write the value of every coordinate of every chunk to `layers`, (chunks, coordinates)."""
    for i in range(ids.shape[0]):
        place = find(columns.slots, columns.ids, ids[i])
        shrinks[i] = _ONE
        if place < 0:
            for k in range(group.coordinates):
                layers[i, k] = begun[i, k]
            continue
        shrinks[i] = shrink_of(group, columns.last_seen[place], now_s)
        gained_of(columns.values, place, group, shrinks[i], layers[i])
        for k in range(group.coordinates):
            layers[i, k] += begun[i, k]


@kernel
def step_layers(  # type: ignore[no-untyped-def]
    columns, gaining, active, group, ids, shrinks, gradients, shows, clicks, now_s
):
    """Step every chunk whose bucket lacks the mini-batch, and count its examples there."""
    shift = shift_of(active.shape[0])
    for i in range(ids.shape[0]):
        if active[(ids[i] >> np.uint64(1)) >> shift]:
            place = find_or_add(columns, ids[i])
            step_row(columns.values, gaining.values, place, group, shrinks[i], gradients[i])
            count_row(columns, gaining, place, shows, clicks, now_s)
