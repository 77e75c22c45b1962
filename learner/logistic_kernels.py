"""The kernels of logistic regression: forward, slope and step, example by example, compiled.

Finding a row is a walk through memory that no cache holds. So the rows of a block of examples are
found before the first of them is learned (places do not move), in stages that overlap the walks:
ask for the slots of the whole block, then for the rows they name, then look. Statistics alone wait
for their example, since they depend on what the one before it counted.

What numba is to make fast is written so that it can: every attribute of a named tuple that a loop
uses is named before it, for taking it inside would count a reference each time, atomically.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ingest.compiled import kernel, part, quotient_part
from ingest.examples import Kind
from learner.ftrl import step, weight
from learner.prefetch import prefetch
from learner.rare_rows import fetch_admission, list_reads, list_strangers, place_strangers
from learner.statistics import keep, recall, statistic_id, take_levels
from pserver.table import find, find_or_add, home

if TYPE_CHECKING:
    import numpy.typing as npt

INTERCEPT = 0x9AE16A3B2F90404F & ~1023
"""Id of the intercept's row: field number 0; its upper bits are an arbitrary constant."""

BLOCK = 16
"""Examples whose rows are found ahead: enough walks to overlap, few enough to stay in cache."""

_SHOWN, _CLICKED, _CLOSED = int(Kind.SHOWN), int(Kind.CLICKED), int(Kind.CLOSED)
_INTERCEPT = np.uint64(INTERCEPT)
_NUMBER = np.uint64(1023)
_ONE = np.float32(1.0)
_MOST_WEIGHED = 0.8
_FARTHEST = 35.0
"""Sums are cut here: the probability is never 0 or 1, and its logarithm is finite."""


class Features(NamedTuple):
    """`Encoded`, as kernels take it: read-only, aligned, contiguous."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    bag_ids: npt.NDArray[np.uint64]  # (total,)
    bag_offsets: npt.NDArray[np.int32]  # (n * bags + 1,)
    numbers: npt.NDArray[np.float32]  # (n, numbers)
    number_ids: npt.NDArray[np.uint64]  # (numbers,)


class Labelled(NamedTuple):
    """What a batch of examples says beside its features."""

    kinds: npt.NDArray[np.uint8]  # (n,)
    labels: npt.NDArray[np.uint8]  # (n,)
    event_ms: npt.NDArray[np.int64]  # (n,)
    shown_ms: npt.NDArray[np.int64]  # (n,)
    impressions: npt.NDArray[np.uint64]  # (n,) hashes, or (0,) if nobody asks for them


class Scratch(NamedTuple):
    """Working memory of one call: the inputs of a block of examples."""

    ids: npt.NDArray[np.uint64]  # (block, inputs) of the rows that are the inputs
    places: npt.NDArray[np.int64]  # (block, inputs) of these rows, -1 where there is none
    live: npt.NDArray[np.bool_]  # (block, inputs) False where the example already counted
    x: npt.NDArray[np.float32]  # (block, inputs) value of the input, 1 for an id
    strangers: npt.NDArray[np.int64]  # (inputs,) which inputs of the example at hand have no row
    reads: npt.NDArray[np.int64]  # (inputs,) places that it is predicted from
    weights: npt.NDArray[np.float32]  # (inputs,) of the same
    squares: npt.NDArray[np.float32]  # (inputs,) n of the same, before the step
    roots: npt.NDArray[np.float32]  # (inputs,) sqrt(n)
    levels: npt.NDArray[np.int16]  # (levels,) of the same
    counts: npt.NDArray[np.int64]  # (block,) inputs of each example
    everywhere: npt.NDArray[np.bool_]  # (1,) True: all ids are in one bucket, and that counts


@part
def _list_fixed(features, i, scratch, row):  # type: ignore[no-untyped-def]
    """Write ids and values of all inputs of example i but its statistics; return how many."""
    ids, x, numbers = scratch.ids[row], scratch.x[row], features.numbers
    singles = features.ids.shape[1]
    ids[0], x[0] = _INTERCEPT, _ONE
    for k in range(singles):
        ids[1 + k], x[1 + k] = features.ids[i, k], _ONE
    count = 1 + singles
    for k in range(numbers.shape[1]):
        ids[count], x[count] = features.number_ids[k], numbers[i, k]
        count += 1
    if features.bag_offsets.shape[0] > 1:
        bags = (features.bag_offsets.shape[0] - 1) // features.ids.shape[0]
        for k in range(features.bag_offsets[i * bags], features.bag_offsets[(i + 1) * bags]):
            ids[count], x[count] = features.bag_ids[k], _ONE
            count += 1
    return count


@part
def _list_statistics(program, field_ids, scratch, row, count):  # type: ignore[no-untyped-def]
    """Write ids and values of the statistics, given their levels; return how many inputs."""
    for k in range(program.numbers.shape[0]):
        scratch.ids[row, count] = statistic_id(program, k, scratch.levels, field_ids)
        scratch.x[row, count] = _ONE
        count += 1
    return count


@part
def _fetch_slots(columns, scratch, row, count):  # type: ignore[no-untyped-def]
    """Ask for where the index will be looked up."""
    slots, ids = columns.slots, scratch.ids[row]
    for k in range(count):
        prefetch(slots, home(slots, ids[k]))


@part
def _fetch_ids(columns, scratch, row, count):  # type: ignore[no-untyped-def]
    """Ask for the rows that the index names, which nearly always are the ones wanted."""
    slots, row_ids, ids = columns.slots, columns.ids, scratch.ids[row]
    for k in range(count):
        place = max(slots[home(slots, ids[k])], 0)
        prefetch(row_ids, place)


@part
def _find(columns, active, shift, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    """Find the rows of inputs [begin, end); return how many are to be added."""
    slots, row_ids = columns.slots, columns.ids
    ids, places, live = scratch.ids[row], scratch.places[row], scratch.live[row]
    missing = 0
    for k in range(begin, end):
        live[k] = active[(ids[k] >> np.uint64(1)) >> shift]
        places[k] = find(slots, row_ids, ids[k])
        if places[k] < 0 and live[k]:
            missing += 1
    return missing


@part
def _fetch_gains(columns, gaining, scratch, row, count):  # type: ignore[no-untyped-def]
    """Ask for what the step of an example will change."""
    places, values, more_values = scratch.places[row], columns.values, gaining.values
    for k in range(count):
        place = max(places[k], 0)
        prefetch(values, place)
        prefetch(more_values, place)


@part
def _add(columns, guarded, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    # apart from `_find`, which is quick as long as nothing in its loop is handed the whole table
    for k in range(begin, end):
        row_id = scratch.ids[row, k]
        if scratch.places[row, k] < 0 and scratch.live[row, k] and not guarded[row_id & _NUMBER]:
            scratch.places[row, k] = find_or_add(columns, row_id)


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


@part
def _slope(kind, label, p):  # type: ignore[no-untyped-def]
    """Return the derivative of the loss by the sum of the weights.

    A closed impression has its label: p - y. With `immediate` every click was first shown as a
    negative, so the stream's rate is biased: p / (1 + p) of its examples are positive. The
    fake-negative-weighted loss of Ktena et al. ("Addressing Delayed Feedback for Continuous
    Training with Neural Networks in CTR prediction", RecSys 2019) weighs the examples by
    importance back to the true distribution, no gradient passing through the weights:

        positives by 1 + p, negatives by (1 - p)(1 + p)

    so that a click moves the sum by -(1 + p)(1 - p), a show by (1 - p)(1 + p) p: zero in
    expectation exactly where p is the rate of clicks.

    Near p = 1 a show weighs nothing, and a model that a burst of clicks took there would stay,
    whatever it is shown. So the p of the weights ends at `_MOST_WEIGHED`: nothing changes where
    the rate of clicks is lower, and above it the model promises a little less than the rate.
    """
    if kind == _CLOSED:
        return p - label
    weighed = min(p, _MOST_WEIGHED)
    if kind == _CLICKED:
        return -(1.0 + weighed) * (1.0 - p)
    return (1.0 - weighed) * (1.0 + weighed) * p


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


@part
def _shift(buckets):  # type: ignore[no-untyped-def]
    """Return by how much half an id is shifted to give its bucket (by 64 at once is undefined)."""
    shift = 63
    while (1 << (63 - shift)) < buckets:
        shift -= 1
    return np.uint64(shift)


@part
def _levels(columns, program, memory, window_ms, labelled, i, scratch, row, singles):  # type: ignore[no-untyped-def]
    """Leave the levels of example i in the scratch: as they were kept, else from the rows."""
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


@part
def _find_block(columns, gaining, active, shift, gate, features, begin, end, scratch, counts):  # type: ignore[no-untyped-def]
    """Find the rows of all inputs of a block but its statistics; ask for what is next."""
    for i in range(begin, end):
        row = i - begin
        counts[row] = _list_fixed(features, i, scratch, row)
        _fetch_slots(columns, scratch, row, counts[row])
    for row in range(end - begin):
        _fetch_ids(columns, scratch, row, counts[row])
    for row in range(end - begin):
        if _find(columns, active, shift, scratch, row, 0, counts[row]):
            _add(columns, gate.guarded, scratch, row, 0, counts[row])
        if gate.on:
            fetch_admission(columns, gate, scratch, row, counts[row])
        _fetch_gains(columns, gaining, scratch, row, counts[row])


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
    shift = _shift(active.shape[0])
    counts = scratch.counts
    for begin in range(0, examples, BLOCK):
        end = min(begin + BLOCK, examples)
        _find_block(columns, gaining, active, shift, gate, features, begin, end, scratch, counts)
        for i in range(begin, end):
            row, count, kind = i - begin, counts[i - begin], labelled.kinds[i]
            strangers, clicked = 0, kind == _CLICKED
            if gate.on:
                shown_s = labelled.shown_ms[i] // 1000
                strangers = list_strangers(columns, gate, clicked, shown_s, scratch, row, count)
            if program.numbers.shape[0]:
                _levels(columns, program, memory, window_ms, labelled, i, scratch, row, singles)
                fixed = count
                count = _list_statistics(program, features.ids[i], scratch, row, fixed)
                if _find(columns, active, shift, scratch, row, fixed, count):
                    _add(columns, gate.guarded, scratch, row, fixed, count)
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
            slope = _slope(kind, labelled.labels[i], p)
            _step(columns, gaining, ftrl, slope, shows, clicks, second, scratch, row, count)


@kernel
def predict(columns, ftrl, program, gate, features, event_ms, scratch, scores):  # type: ignore[no-untyped-def]
    """Write the probability of a click of each row of `features` to `scores`. Adds no row."""
    examples, singles = features.ids.shape
    everywhere = scratch.everywhere
    shift = _shift(1)
    for i in range(examples):
        count = _list_fixed(features, i, scratch, 0)
        _find(columns, everywhere, shift, scratch, 0, 0, count)
        strangers = 0
        if gate.on:
            strangers = list_strangers(columns, gate, False, 0, scratch, 0, count)
        if program.numbers.shape[0]:
            places, live = scratch.places[0, 1 : 1 + singles], scratch.live[0, 1 : 1 + singles]
            take_levels(program, columns, places, live, 0, 0, event_ms[i] // 1000, scratch.levels)
            fixed = count
            count = _list_statistics(program, features.ids[i], scratch, 0, fixed)
            _find(columns, everywhere, shift, scratch, 0, fixed, count)
        reads = scratch.places[0]
        if strangers:
            list_reads(columns, gate, strangers, scratch, 0, count)
            reads = scratch.reads
        scores[i] = _forward(columns, ftrl, reads, scratch, 0, count)
