"""Steps the rows of a mini-batch by their gradients, or takes back that it was counted.

`learner.models.deep.kernels` gathered and counted the mini-batch before, and gave each row that it
names a turn. Here the gradients that the network returns by position are summed by turn. Then each
row is stepped once. Where the mini-batch must not be learned, its counts are taken back instead.
"""

import numpy as np

from headrace.learner.inputs.example_inputs import weight_of
from headrace.learner.inputs.learned_weights import slope_items
from headrace.learner.intrinsics.simd import LANES, add, eight, take
from headrace.learner.kernels.loss import choose, slope_of
from headrace.learner.kernels.optimizers import shrink_of, step_row
from headrace.learner.kernels.row_values import NOT_LEARNED
from headrace.pserver.intrinsics.row_prefetch import prefetch, prefetch_row
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_ONE = np.float32(1.0)
_ROWS_AHEAD = 8
"""Rows prefetched before they are stepped: torch's matrices took their place in the caches."""


@kernel
def loss_gradients(labelled, begin, probabilities, slopes):  # type: ignore[no-untyped-def]
    """Write the slope of the loss of each example from `begin` on, by its log-odds.

    Where the loss is that of a choice, `probabilities` become those of the choice first.
    """
    k, count = 0, probabilities.shape[0]
    while labelled.chosen and k < count:
        stop = labelled.ends[begin + k] - begin
        choose(probabilities, k, stop)
        k = stop
    for k in range(count):
        i = begin + k
        slopes[k] = slope_of(labelled, i, probabilities[k]) * weight_of(labelled, i)


@inlined
def _add_gradient(turns, turn, x, weight_gradient):  # type: ignore[no-untyped-def]
    turns.stepped[turn] = True
    turns.weight_gradient[turn, 0] += weight_gradient * x


@inlined
def _add_vector_gradient(turns, turn, x, gradients, at):  # type: ignore[no-untyped-def]
    total, gradient = row_of(turns.vector_gradient, turn), row_of(gradients, at)
    count = total.shape[0]
    whole = count - count % LANES
    for f in range(0, whole, LANES):
        add(total, 0, eight(f), take(gradient, 0, eight(f)) * x)
    for f in range(whole, count):
        total[f] += gradient[f] * x


@kernel
def sum_gradients(turns, gathered, examples, gradients):  # type: ignore[no-untyped-def]
    """Sum the gradients of every row that was named, over the examples that count in it."""
    targets, values = gathered.targets, gathered.x
    fixed = gradients.weights.shape[0]
    each = fixed // examples
    for i in range(examples):
        for k in range(each):
            at = i * each + k
            turn = targets[at]
            if turn >= 0:
                _add_gradient(turns, turn, values[at], gradients.weights[at])
                if k:
                    _add_vector_gradient(turns, turn, values[at], gradients.vectors, at - i - 1)
    for k in range(gradients.item_weights.shape[0]):
        turn, x = targets[fixed + k], values[fixed + k]
        if turn >= 0:
            _add_gradient(turns, turn, x, gradients.item_weights[k])
            _add_vector_gradient(turns, turn, x, gradients.item_vectors, k)


@kernel
def sum_item_gradients(turns, gathered, poolings, offsets, examples, gradients, q):  # type: ignore[no-untyped-def]
    """Sum the gradients by the importances of bag items.

    offsets: of the items, from 0. q: (items,) working memory (learner.inputs.learned_weights).
    """
    bags, items = poolings.shape[0], gradients.item_weights.shape[0]
    fixed, x = gradients.weights.shape[0], gathered.x[gradients.weights.shape[0] :]
    for k in range(items):
        q[k] = gradients.item_weights[k] * gathered.weights[fixed + k]
        vector = row_of(gathered.vectors, fixed - examples + k)
        for f in range(vector.shape[0]):
            q[k] += gradients.item_vectors[k, f] * vector[f]
    for i in range(examples):
        for b in range(bags):
            begin, end = offsets[i * bags + b], offsets[i * bags + b + 1]
            if poolings[b] != NOT_LEARNED:
                slope_items(poolings[b], x, q, begin, end)
                for k in range(begin, end):
                    turn = gathered.targets[fixed + k]
                    if turn >= 0:
                        turns.item_gradient[turn, 0] += q[k]


@kernel
def step_rows(columns, gaining, parameters, turns):  # type: ignore[no-untyped-def]
    """Step every row that was named by the sum of its gradients, once; forget the turns.

    Decay due since the row was last seen before the mini-batch is caught up to the last example
    that names it: otherwise the seconds between two of them would be lost with every mini-batch.
    """
    places, turn_of, last = turns.places, turns.turn_of, turns.count[0] - 1
    for turn in range(last + 1):
        place, ahead = places[turn], places[min(turn + _ROWS_AHEAD, last)]
        prefetch_row(columns.values, ahead)
        prefetch_row(gaining.values, ahead)
        prefetch(turn_of, ahead)
        if turns.stepped[turn]:
            whole = columns.values, gaining.values, place
            before, now_s = turns.last_seen[turn], columns.last_seen[place]
            shrink = shrink_of(parameters.weights, before, now_s)
            step_row(*whole, parameters.weights, shrink, row_of(turns.weight_gradient, turn))
            shrink = shrink_of(parameters.vectors, before, now_s)
            step_row(*whole, parameters.vectors, shrink, row_of(turns.vector_gradient, turn))
            if parameters.poolings.shape[0]:
                step_row(*whole, parameters.items, _ONE, row_of(turns.item_gradient, turn))
        turn_of[place] = -1
    turns.count[0] = 0


@kernel
def uncount(columns, gaining, turns, touched):  # type: ignore[no-untyped-def]
    """Take back what `gather` counted, instead of `step_rows`; forget the turns.

    touched: how many rows had something pending before `gather`.
    """
    for turn in range(turns.count[0]):
        place, before = turns.places[turn], row_of(turns.pending, turn)
        # not set to what they were: entries of others may have been folded in the meantime
        columns.shows[place] -= gaining.shows[place] - before[0]
        columns.clicks[place] -= gaining.clicks[place] - before[1]
        columns.first_seen[place] = turns.first_seen[turn]
        columns.last_seen[place] = turns.last_seen[turn]
        gaining.shows[place], gaining.clicks[place] = before[0], before[1]
        gaining.since[place], gaining.last_seen[place] = before[2], before[3]
        turns.turn_of[place] = -1
    gaining.count[0] = touched  # rows are appended when first touched
    turns.count[0] = 0
