"""Logistic regression on the rows of ids, learned example by example, the model of most CTR teams.

The inputs of an example are the intercept, an id for each single-valued field, a weight times a
number for each plain number, an id for each item of each bag, and the statistics of rows. All of
them are rows, found by id. `learn` walks a batch in one compiled kernel: find the rows, take the
statistics, add up the weights, note the score, step, count. Example by example means exactly that:
learning a stream in batches of one or of a thousand gives the same rows, bit for bit.

Finding a row is a walk through memory that no cache holds, so the kernel finds the rows of a block
of examples before it learns the first of them: places do not move, and the processor overlaps the
walks. An id in a bucket that already has the example changes nothing there, but its weight counts
in the sum all the same.

The same forward pass answers requests (`predict`), from the rows as they stand.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from ingest.examples import Kind
from ingest.values import hash_strings
from learner.ftrl import constants, step, weight
from learner.prefetch import prefetch
from learner.statistics import (
    Memory,
    empty_memory,
    keep,
    recall,
    statistic_id,
    take_levels,
    with_room,
)
from pserver.table import find, find_or_add

if TYPE_CHECKING:
    import numpy.typing as npt

    from ingest.examples import Encoded, Examples
    from learner.pending import Gaining
    from learner.spec import ModelSpec
    from pserver.table import RowTable

INTERCEPT = 0x9AE16A3B2F90404F & ~1023
"""Id of the intercept's row: field number 0; its upper bits are an arbitrary constant."""

WIDTH = 2
"""Floats a row: z and n of FTRL-Proximal."""

_BLOCK = 16
"""Examples whose rows are found ahead: enough walks to overlap, few enough to stay in cache."""

_SHOWN, _CLICKED, _CLOSED = int(Kind.SHOWN), int(Kind.CLICKED), int(Kind.CLOSED)
_INTERCEPT = np.uint64(INTERCEPT)
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
    impressions: npt.NDArray[np.uint64]  # (n,) hashes, or (0,) if nothing is to be remembered


class Scratch(NamedTuple):
    """Working memory of one call: the inputs of a block of examples."""

    ids: npt.NDArray[np.uint64]  # (block, inputs) of the rows that are the inputs
    places: npt.NDArray[np.int64]  # (block, inputs) of these rows, -1 where there is none
    live: npt.NDArray[np.bool_]  # (block, inputs) False where the example already counted
    x: npt.NDArray[np.float32]  # (block, inputs) value of the input, 1 for an id
    weights: npt.NDArray[np.float32]  # (inputs,) of the example at hand
    squares: npt.NDArray[np.float32]  # (inputs,) n of the same, before the step
    roots: npt.NDArray[np.float32]  # (inputs,) sqrt(n)
    levels: npt.NDArray[np.int16]  # (levels,) of the same


class LogisticRegression:
    """The model of a spec. One thread learns; any number may predict from a view of their own."""

    def __init__(self, spec: ModelSpec) -> None:
        optimizer = spec.optimizer
        self.width = WIDTH
        self._ftrl = constants(optimizer.alpha, optimizer.beta, optimizer.l1, optimizer.l2)
        self._program = spec.program
        self._number_ids = _read_only(spec.fields.number_ids, np.uint64)
        self._fixed_inputs = 1 + len(spec.fields.singles) + len(spec.fields.numbers)
        self._bags = len(spec.fields.bags)
        self._window_ms = spec.fields.label.window_ms
        self._levels = self._program.kinds.shape[0]
        self._memory = empty_memory(self._levels)

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        each = self._fixed_inputs + self._program.numbers.shape[0]
        return len(examples) * each + int(examples.features.bag_ids.shape[0])

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions shown at `event_ms`; shape (n,).

        Statistics are taken from the rows as they stand. Never adds a row.
        """
        inputs = self._features(features)
        scores = np.empty(len(features), np.float64)
        _predict(
            view.columns,
            self._ftrl,
            self._program,
            inputs,
            _read_only(event_ms, np.int64),
            self._scratch(features, 1),
            scores,
        )
        return scores

    def learn(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """Score, then learn, example by example; return the scores, shape (n,), NaN for CLICKED.

        The caller reserved room for `rows_needed` in `view`, and `gaining` has its capacity.
        active: (buckets,) False where the bucket already has these examples: an id there changes
        neither view nor gains.
        """
        remembers = self._levels > 0 and bool((examples.kinds != _CLOSED).any())
        if remembers:
            shown = int(np.count_nonzero(examples.kinds == _SHOWN))
            self._memory = with_room(self._memory, shown)
            impressions = hash_strings(examples.impression_ids)
        else:
            impressions = np.zeros(0, np.uint64)
        labelled = Labelled(
            _read_only(examples.kinds, np.uint8),
            _read_only(examples.labels, np.uint8),
            _read_only(examples.event_ms, np.int64),
            _read_only(examples.shown_ms, np.int64),
            _read_only(impressions, np.uint64),
        )
        scores = np.full(len(examples), np.nan)
        _learn(
            view.columns,
            gaining,
            _read_only(active, np.bool_),
            self._ftrl,
            self._program,
            self._memory,
            self._window_ms,
            self._features(examples.features),
            labelled,
            self._scratch(examples.features, _BLOCK),
            scores,
        )
        return scores

    def forget(self) -> None:
        """Drop what is remembered of impressions: their clicks take the rows as they stand then."""
        self._memory = empty_memory(self._levels)

    def _features(self, encoded: Encoded) -> Features:
        return Features(
            _read_only(encoded.ids, np.uint64),
            _read_only(encoded.bag_ids, np.uint64),
            _read_only(encoded.bag_offsets, np.int32),
            _read_only(encoded.numbers, np.float32),
            self._number_ids,
        )

    def _scratch(self, encoded: Encoded, block: int) -> Scratch:
        longest = 0
        if self._bags and len(encoded):
            ends = encoded.bag_offsets[:: self._bags]
            longest = int(np.diff(ends).max())
        inputs = self._fixed_inputs + longest + int(self._program.numbers.shape[0])
        return Scratch(
            np.empty((block, inputs), np.uint64),
            np.empty((block, inputs), np.int64),
            np.empty((block, inputs), np.bool_),
            np.empty((block, inputs), np.float32),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.empty(inputs, np.float32),
            np.empty(self._levels, np.int16),
        )


def _read_only(array: npt.NDArray, dtype: type) -> npt.NDArray:
    # one type for every caller, so that kernels are compiled once: what comes from a message is
    # read-only and perhaps unaligned, what a test or a server made is not
    plain = np.require(array, dtype, ["C", "A"]).view()
    plain.flags.writeable = False
    return plain


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _list_statistics(program, field_ids, scratch, row, count):  # type: ignore[no-untyped-def]
    """Write ids and values of the statistics, given their levels; return how many inputs."""
    for k in range(program.numbers.shape[0]):
        scratch.ids[row, count] = statistic_id(program, k, scratch.levels, field_ids)
        scratch.x[row, count] = _ONE
        count += 1
    return count


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _fetch(columns, gaining, scratch, row, count):  # type: ignore[no-untyped-def]
    """Ask for the rows of an example, which is learned some examples from now."""
    places = scratch.places[row]
    values, shows, clicks = columns.values, columns.shows, columns.clicks
    first_seen, last_seen = columns.first_seen, columns.last_seen
    more_values, more_shows, more_clicks = gaining.values, gaining.shows, gaining.clicks
    more_first_seen, more_last_seen = gaining.first_seen, gaining.last_seen
    touched = gaining.touched
    for k in range(count):
        place = max(places[k], 0)
        prefetch(values, place)
        prefetch(shows, place)
        prefetch(clicks, place)
        prefetch(first_seen, place)
        prefetch(last_seen, place)
        prefetch(touched, place)
        prefetch(more_values, place)
        prefetch(more_shows, place)
        prefetch(more_clicks, place)
        prefetch(more_first_seen, place)
        prefetch(more_last_seen, place)


@njit(cache=True, nogil=True)
def _add(columns, scratch, row, begin, end):  # type: ignore[no-untyped-def]
    # apart from `_find`, which is quick as long as nothing in its loop is handed the whole table
    for k in range(begin, end):
        if scratch.places[row, k] < 0 and scratch.live[row, k]:
            scratch.places[row, k] = find_or_add(columns, scratch.ids[row, k])


@njit(cache=True, nogil=True, error_model="numpy")
def _forward(columns, ftrl, scratch, row, count):  # type: ignore[no-untyped-def]
    """Return the probability of a click; leave weights, n and sqrt(n) for the step."""
    total = 0.0
    for k in range(count):
        place = scratch.places[row, k]
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


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True)
def _shift(buckets):  # type: ignore[no-untyped-def]
    """Return by how much half an id is shifted to give its bucket (by 64 at once is undefined)."""
    shift = 63
    while (1 << (63 - shift)) < buckets:
        shift -= 1
    return np.uint64(shift)


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def _learn(  # type: ignore[no-untyped-def]
    columns, gaining, active, ftrl, program, memory, window_ms, features, labelled, scratch, scores
):
    examples, singles = features.ids.shape
    shift = _shift(active.shape[0])
    counts = np.empty(_BLOCK, np.int64)
    for begin in range(0, examples, _BLOCK):
        end = min(begin + _BLOCK, examples)
        for i in range(begin, end):
            row = i - begin
            counts[row] = _list_fixed(features, i, scratch, row)
            if _find(columns, active, shift, scratch, row, 0, counts[row]):
                _add(columns, scratch, row, 0, counts[row])
            _fetch(columns, gaining, scratch, row, counts[row])
        for i in range(begin, end):
            row, count, kind = i - begin, counts[i - begin], labelled.kinds[i]
            if program.numbers.shape[0]:
                _levels(columns, program, memory, window_ms, labelled, i, scratch, row, singles)
                fixed = count
                count = _list_statistics(program, features.ids[i], scratch, row, fixed)
                if _find(columns, active, shift, scratch, row, fixed, count):
                    _add(columns, scratch, row, fixed, count)
            p = _forward(columns, ftrl, scratch, row, count)
            if kind != _CLICKED:
                scores[i] = p
            shows = 0 if kind == _CLICKED else 1
            clicks = 0 if kind == _SHOWN else np.int64(labelled.labels[i])
            second = np.uint32(labelled.event_ms[i] // 1000)
            slope = _slope(kind, labelled.labels[i], p)
            _step(columns, gaining, ftrl, slope, shows, clicks, second, scratch, row, count)


@njit(cache=True, nogil=True)
def _predict(columns, ftrl, program, features, event_ms, scratch, scores):  # type: ignore[no-untyped-def]
    examples, singles = features.ids.shape
    everywhere = np.ones(1, np.bool_)
    shift = _shift(1)
    for i in range(examples):
        count = _list_fixed(features, i, scratch, 0)
        _find(columns, everywhere, shift, scratch, 0, 0, count)
        if program.numbers.shape[0]:
            places, live = scratch.places[0, 1 : 1 + singles], scratch.live[0, 1 : 1 + singles]
            take_levels(program, columns, places, live, 0, 0, event_ms[i] // 1000, scratch.levels)
            fixed = count
            count = _list_statistics(program, features.ids[i], scratch, 0, fixed)
            _find(columns, everywhere, shift, scratch, 0, fixed, count)
        scores[i] = _forward(columns, ftrl, scratch, 0, count)
