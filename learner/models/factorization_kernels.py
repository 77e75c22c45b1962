"""The kernels of the factorization machine: forward and step, example by example, compiled.

Rendle, "Factorization Machines", ICDM 2010. The sum of all pairs of inputs costs as much as the
inputs alone (lemma 3.1); its derivative by a coordinate is eq. (4). The intercept is w0 of eq. (1):
it has a weight, and takes part in no pair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest.compiled import kernel, quotient_part
from ingest.examples import Kind
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
from learner.optimizers import shrink_of, step_row
from learner.rare_rows import list_reads, list_strangers, place_strangers
from learner.row_counters import count_row
from learner.row_values import read_id, read_vector, read_weight
from learner.statistics import take_levels

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_SHOWN, _CLICKED = int(Kind.SHOWN), int(Kind.CLICKED)
_ZERO = np.float32(0.0)
_FARTHEST = 35.0
"""Sums are cut here: the probability is never 0 or 1, and its logarithm is finite."""


class Work(NamedTuple):
    """Working memory of one example, beside `Scratch`."""

    vectors: Floats  # (inputs, d) that the example is predicted from
    total: Floats  # (d,) sum of the inputs' vectors, each times its value
    gradient: Floats  # (d,)
    one: Floats  # (1,) the same of a weight


@quotient_part
def _forward(columns, machine, gate, reads, now_s, scratch, work, row, count):  # type: ignore[no-untyped-def]
    """Return the probability of a click; leave the vectors and their sum in `work`."""
    ids, x, total = scratch.ids[row], scratch.x[row], work.total
    dimensions = machine.vectors.coordinates
    linear = pairs = 0.0
    for f in range(dimensions):
        total[f] = _ZERO
    for k in range(count):
        place = reads[k]
        last_seen = columns.last_seen[place] if place >= 0 else np.uint32(0)
        shrink = shrink_of(machine.weights, last_seen, now_s)
        linear += read_weight(columns.values, machine, place, shrink, work.one) * x[k]
        if k == 0 or dimensions == 0:
            continue
        vector = work.vectors[k]
        shrink = shrink_of(machine.vectors, last_seen, now_s)
        row_id = read_id(columns, gate, place, ids[k])
        read_vector(columns.values, machine, place, row_id, shrink, vector)
        squares = 0.0
        for f in range(dimensions):
            part_of = vector[f] * x[k]
            total[f] += part_of
            squares += part_of * part_of
        pairs -= squares
    for f in range(dimensions):
        pairs += total[f] * total[f]
    y = linear + 0.5 * pairs
    return 1.0 / (1.0 + math.exp(-min(max(y, -_FARTHEST), _FARTHEST)))


@quotient_part
def _step(columns, gaining, machine, slope, shows, clicks, second, scratch, work, row, count):  # type: ignore[no-untyped-def]
    """Step and count the rows of one example, in the view and in what is pending alike."""
    values, more = columns.values, gaining.values
    places, live, x = scratch.places[row], scratch.live[row], scratch.x[row]
    total, gradient, one = work.total, work.gradient, work.one
    dimensions = machine.vectors.coordinates
    for k in range(count):
        if not live[k]:
            continue
        place, scaled = places[k], np.float32(slope) * x[k]
        last_seen = columns.last_seen[place]
        one[0] = scaled
        shrink = shrink_of(machine.weights, last_seen, second)
        step_row(values, more, place, machine.weights, shrink, one)
        if k > 0 and dimensions > 0:
            vector = work.vectors[k]
            for f in range(dimensions):
                gradient[f] = scaled * (total[f] - vector[f] * x[k])
            shrink = shrink_of(machine.vectors, last_seen, second)
            step_row(values, more, place, machine.vectors, shrink, gradient)
        count_row(columns, gaining, place, shows, clicks, second)


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
            second = np.uint32(labelled.event_ms[i] // 1000)
            p = _forward(columns, machine, gate, reads, second, scratch, work, row, count)
            if not clicked:
                scores[i] = p
            if strangers:
                impression = labelled.impressions[i] if gate.sightings == 0 else np.uint64(0)
                place_strangers(columns, gate, strangers, clicked, impression, scratch, row)
            shows = 0 if clicked else 1
            clicks = 0 if kind == _SHOWN else np.int64(labelled.labels[i])
            slope = slope_of(kind, labelled.labels[i], p)
            _step(
                columns, gaining, machine, slope, shows, clicks, second, scratch, work, row, count
            )


@kernel
def predict(columns, machine, program, gate, features, event_ms, scratch, work, scores):  # type: ignore[no-untyped-def]
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
        second = np.uint32(event_ms[i] // 1000)
        scores[i] = _forward(columns, machine, gate, reads, second, scratch, work, 0, count)
