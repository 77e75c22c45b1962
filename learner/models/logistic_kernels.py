"""The kernels of logistic regression: forward and step, example by example, compiled."""

from __future__ import annotations

import math

import numpy as np

from ingest.compiled import kernel, quotient_part
from learner.ftrl import step, weight
from learner.inputs import (
    BLOCK,
    begin_at,
    counts_of,
    find_asked,
    find_block,
    find_example,
    settle_strangers,
    shift_of,
    weight_of,
)
from learner.label_loss import probability_of, slope_of
from learner.row_counters import count_row


@quotient_part
def _forward(columns, ftrl, reads, scratch, row, count):  # type: ignore[no-untyped-def]
    """Return the probability of a click, from the rows at `reads`; leave weights, n and sqrt(n).

    Gathered first, so that the arithmetic is a loop over neighbours, several at a time.
    """
    values, zs, squares, roots = columns.values, scratch.zs, scratch.squares, scratch.roots
    weights, x = scratch.weights, scratch.x[row]
    for k in range(count):
        zs[k] = squares[k] = np.float32(0.0)
        if reads[k] >= 0:
            place = np.uint64(reads[k])
            zs[k], squares[k] = values[place, 0], values[place, 1]
    for k in range(count):
        root_n = math.sqrt(squares[k])
        roots[k] = root_n
        weights[k] = weight(zs[k], root_n, ftrl)
    total = 0.0
    for k in range(count):
        total += weights[k] * x[k]
    return probability_of(total)


@quotient_part
def _step(columns, gaining, ftrl, slope, counted, scratch, row, count):  # type: ignore[no-untyped-def]
    """Step and count the rows of one example, in the view and in what is pending alike.

    What z and n gain takes the place of what they were.
    """
    values, more_values = columns.values, gaining.values
    places, live, x = scratch.places[row], scratch.live[row], scratch.x[row]
    weights, squares, roots, zs = scratch.weights, scratch.squares, scratch.roots, scratch.zs
    shows, clicks, second = counted
    slope = np.float32(slope)
    for k in range(count):
        zs[k], squares[k] = step(slope * x[k], weights[k], squares[k], roots[k], ftrl)
    for k in range(count):
        if not live[k]:
            continue
        place = np.uint64(places[k])
        values[place, 0] += zs[k]
        values[place, 1] += squares[k]
        more_values[place, 0] += zs[k]
        more_values[place, 1] += squares[k]
        count_row(columns, gaining, place, shows, clicks, second)


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
    """Score into `scores`, then learn, each example of a batch in turn. The caller made room.

    first: None, or where to begin, of a learner that does not hold all rows. Return how many of the
    batch are learned: all, or those before one with a statistic whose row has to be got.
    """
    shift, examples = shift_of(active.shape[0]), features.ids.shape[0]
    for begin in range(begin_at(first), examples, BLOCK):
        end = min(begin + BLOCK, examples)
        find_block(columns, gaining, active, shift, gate, features, begin, end, scratch)
        for i in range(begin, end):
            row, kind = i - begin, labelled.kinds[i]
            count, strangers = find_example(
                *(columns, active, shift, program, memory, window_ms, gate),
                *(features, labelled, i, scratch, row, first),
            )
            if first is not None and count < 0:
                return i
            reads = scratch.reads if strangers else scratch.places[row]
            p = _forward(columns, ftrl, reads, scratch, row, count)
            scores[i] = p
            if strangers:
                settle_strangers(columns, gate, labelled, i, strangers, scratch, row)
            slope = slope_of(kind, labelled.labels[i], p) * weight_of(labelled, i)
            _step(columns, gaining, ftrl, slope, counts_of(labelled, i), scratch, row, count)
    return examples


@kernel
def predict(columns, ftrl, program, gate, features, event_ms, scratch, scores):  # type: ignore[no-untyped-def]
    """Write the probability of a click of each row of `features` to `scores`. Adds no row."""
    for i in range(features.ids.shape[0]):
        count, strangers = find_asked(columns, program, gate, features, event_ms[i], i, scratch)
        reads = scratch.reads if strangers else scratch.places[0]
        scores[i] = _forward(columns, ftrl, reads, scratch, 0, count)
