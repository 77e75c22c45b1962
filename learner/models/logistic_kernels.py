"""The kernels of logistic regression: forward and step, example by example, compiled."""

from __future__ import annotations

import math

import numpy as np

from ingest.compiled import kernel, quotient_part
from ingest.examples import Kind
from learner.ftrl import step, weight
from learner.inputs import (
    BLOCK,
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

_CLICKED = int(Kind.CLICKED)


@quotient_part
def _forward(columns, ftrl, reads, scratch, row, count):  # type: ignore[no-untyped-def]
    """Return the probability of a click, from the rows at `reads`; leave weights, n and sqrt(n)."""
    total = 0.0
    for k in range(count):
        place = reads[k]
        z = n = np.float32(0.0)
        if place >= 0:
            z, n = columns.values[place, 0], columns.values[place, 1]
        root_n = math.sqrt(n)
        w = weight(z, root_n, ftrl)
        scratch.squares[k] = n
        scratch.roots[k] = root_n
        scratch.weights[k] = w
        total += w * scratch.x[row, k]
    return probability_of(total)


@quotient_part
def _step(columns, gaining, ftrl, slope, counted, scratch, row, count):  # type: ignore[no-untyped-def]
    """Step and count the rows of one example, in the view and in what is pending alike."""
    values, more_values = columns.values, gaining.values
    places, live, x = scratch.places[row], scratch.live[row], scratch.x[row]
    weights, squares, roots = scratch.weights, scratch.squares, scratch.roots
    shows, clicks, second = counted
    for k in range(count):
        place = places[k]
        if not live[k]:
            continue
        gradient = np.float32(slope) * x[k]
        z_gain, n_gain = step(gradient, weights[k], squares[k], roots[k], ftrl)
        values[place, 0] += z_gain
        values[place, 1] += n_gain
        more_values[place, 0] += z_gain
        more_values[place, 1] += n_gain
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
):
    """Score into `scores`, then learn, each example of a batch in turn. The caller made room."""
    shift = shift_of(active.shape[0])
    for begin in range(0, features.ids.shape[0], BLOCK):
        end = min(begin + BLOCK, features.ids.shape[0])
        find_block(columns, gaining, active, shift, gate, features, begin, end, scratch)
        for i in range(begin, end):
            row, kind = i - begin, labelled.kinds[i]
            count, strangers = find_example(
                *(columns, active, shift, program, memory, window_ms, gate),
                *(features, labelled, i, scratch, row),
            )
            reads = scratch.reads if strangers else scratch.places[row]
            p = _forward(columns, ftrl, reads, scratch, row, count)
            if kind != _CLICKED:
                scores[i] = p
            if strangers:
                settle_strangers(columns, gate, labelled, i, strangers, scratch, row)
            slope = slope_of(kind, labelled.labels[i], p) * weight_of(labelled, i)
            _step(columns, gaining, ftrl, slope, counts_of(labelled, i), scratch, row, count)


@kernel
def predict(columns, ftrl, program, gate, features, event_ms, scratch, scores):  # type: ignore[no-untyped-def]
    """Write the probability of a click of each row of `features` to `scores`. Adds no row."""
    for i in range(features.ids.shape[0]):
        count, strangers = find_asked(columns, program, gate, features, event_ms[i], i, scratch)
        reads = scratch.reads if strangers else scratch.places[0]
        scores[i] = _forward(columns, ftrl, reads, scratch, 0, count)
