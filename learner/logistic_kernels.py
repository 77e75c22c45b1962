"""The kernels of logistic regression: forward and step, example by example, compiled."""

from __future__ import annotations

import math

import numpy as np

from ingest.compiled import kernel, quotient_part
from ingest.examples import Kind
from learner.ftrl import step, weight
from learner.inputs import (
    BLOCK,
    add_rows,
    find_block,
    find_rows,
    list_fixed,
    list_levels,
    list_statistics,
    shift_of,
)
from learner.label_loss import slope_of
from learner.rare_rows import list_reads, list_strangers, place_strangers
from learner.statistics import take_levels

_SHOWN, _CLICKED = int(Kind.SHOWN), int(Kind.CLICKED)
_FARTHEST = 35.0
"""Sums are cut here: the probability is never 0 or 1, and its logarithm is finite."""


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
    return 1.0 / (1.0 + math.exp(-min(max(total, -_FARTHEST), _FARTHEST)))


@quotient_part
def _step(columns, gaining, ftrl, slope, shows, clicks, second, scratch, row, count):  # type: ignore[no-untyped-def]
    """Step and count the rows of one example, in the view and in what is pending alike."""
    # named once: every attribute of a tuple taken inside the loop would count a reference
    values, more_values = columns.values, gaining.values
    all_shows, more_shows = columns.shows, gaining.shows
    all_clicks, more_clicks = columns.clicks, gaining.clicks
    first_seen, more_first_seen = columns.first_seen, gaining.first_seen
    last_seen, more_last_seen = columns.last_seen, gaining.last_seen
    touched, order, touched_count = gaining.touched, gaining.order, gaining.count
    places, live, x = scratch.places[row], scratch.live[row], scratch.x[row]
    weights, squares, roots = scratch.weights, scratch.squares, scratch.roots
    for k in range(count):
        place = places[k]
        if not live[k]:
            continue
        gradient = np.float32(slope) * x[k]
        z_gain, n_gain = step(gradient, weights[k], squares[k], roots[k], ftrl)
        values[place, 0] += z_gain
        values[place, 1] += n_gain
        all_shows[place] += np.uint64(shows)
        all_clicks[place] += np.uint64(clicks)
        first_seen[place] = min(first_seen[place], second)
        last_seen[place] = max(last_seen[place], second)
        if not touched[place]:
            touched[place] = True
            order[touched_count[0]] = place
            touched_count[0] += 1
        more_values[place, 0] += z_gain
        more_values[place, 1] += n_gain
        more_shows[place] += np.uint32(shows)
        more_clicks[place] += np.uint32(clicks)
        more_first_seen[place] = min(more_first_seen[place], second)
        more_last_seen[place] = max(more_last_seen[place], second)


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
    examples, singles = features.ids.shape
    shift = shift_of(active.shape[0])
    counts = scratch.counts
    for begin in range(0, examples, BLOCK):
        end = min(begin + BLOCK, examples)
        find_block(columns, gaining, active, shift, gate, features, begin, end, scratch, counts)
        for i in range(begin, end):
            row, count, kind = i - begin, counts[i - begin], labelled.kinds[i]
            strangers, clicked = 0, kind == _CLICKED
            if gate.on:
                shown_s = labelled.shown_ms[i] // 1000
                strangers = list_strangers(columns, gate, clicked, shown_s, scratch, row, count)
            if program.numbers.shape[0]:
                list_levels(columns, program, memory, window_ms, labelled, i, scratch, row, singles)
                fixed = count
                count = list_statistics(program, features.ids[i], scratch, row, fixed)
                if find_rows(columns, active, shift, scratch, row, fixed, count):
                    add_rows(columns, gate.guarded, scratch, row, fixed, count)
            reads = scratch.places[row]
            if strangers:
                list_reads(columns, gate, strangers, scratch, row, count)
                reads = scratch.reads
            p = _forward(columns, ftrl, reads, scratch, row, count)
            if not clicked:
                scores[i] = p
            if strangers:
                impression = labelled.impressions[i] if gate.sightings == 0 else np.uint64(0)
                place_strangers(columns, gate, strangers, clicked, impression, scratch, row)
            shows = 0 if clicked else 1
            clicks = 0 if kind == _SHOWN else np.int64(labelled.labels[i])
            second = np.uint32(labelled.event_ms[i] // 1000)
            slope = slope_of(kind, labelled.labels[i], p)
            _step(columns, gaining, ftrl, slope, shows, clicks, second, scratch, row, count)


@kernel
def predict(columns, ftrl, program, gate, features, event_ms, scratch, scores):  # type: ignore[no-untyped-def]
    """Write the probability of a click of each row of `features` to `scores`. Adds no row."""
    examples, singles = features.ids.shape
    everywhere = scratch.everywhere
    shift = shift_of(1)
    for i in range(examples):
        count = list_fixed(features, i, scratch, 0)
        find_rows(columns, everywhere, shift, scratch, 0, 0, count)
        strangers = 0
        if gate.on:
            strangers = list_strangers(columns, gate, False, 0, scratch, 0, count)
        if program.numbers.shape[0]:
            places, live = scratch.places[0, 1 : 1 + singles], scratch.live[0, 1 : 1 + singles]
            take_levels(program, columns, places, live, 0, 0, event_ms[i] // 1000, scratch.levels)
            fixed = count
            count = list_statistics(program, features.ids[i], scratch, 0, fixed)
            find_rows(columns, everywhere, shift, scratch, 0, fixed, count)
        reads = scratch.places[0]
        if strangers:
            list_reads(columns, gate, strangers, scratch, 0, count)
            reads = scratch.reads
        scores[i] = _forward(columns, ftrl, reads, scratch, 0, count)
