"""Platt calibration, learned online: two numbers that keep a model's probabilities true.

A model that learned the past may predict too much or too little today: the rate of clicks moved, or
the model is overconfident, as models with many parameters are in one pass. With

    [calibration]
    kind = "platt"

the answer is sigmoid((1 + a) z + b), z being the log-odds of the model (Platt, "Probabilistic
outputs for support vector machines", 1999). a and b follow the gradient of the cross entropy,
example by example, each after it was scored (online: Gupta and Ramdas, "Online Platt scaling with
calibeating", ICML 2023). Their rate is constant, so recent outcomes count: the last
1 / (alpha p (1 - p)) examples or so. The model itself learns as if there were no layer: no gradient
passes through.

a and b are a row each, with a reserved field number. So they are pushed, folded, marked and served
like all other rows, several learners add to them, and learner and server run the same forward pass.
The step is plain SGD, which only adds.

An example of weight w takes about the step that w copies of it would take one after another, each
with p a little nearer to the outcome (the first terms of Karampatziakis and Langford, "Online
importance weight aware updates", UAI 2011). This shortens the step, by a factor that depends on w
and p alone. If it depended on the outcome, or grew with w at any p, it would bias a stream with
down-sampled negatives: only the negatives are heavy there, and they would pull too little.
*Limits:* an example moves an answer by at most 4 in log-odds; if alpha w (1 + z z) comes near that,
alpha must be smaller. A heavy example also adds noise in proportion to w: if the weights of clicks
vary by factors of hundreds, alpha must be smaller, too.

Under `immediate` an impression is a negative when it is shown and its click comes on top, so the
loss is the positive-unlabelled one (Ktena et al., RecSys 2019): the slope of a show is p, of a
click -1. A click is learned at the log-odds that its impression was *shown* with, which are
remembered for a window. By the time the click arrives, the model has learned the same impression as
a negative and predicts less; learning with that lower value flattened every model. With both, a and
b settle where predictions and clicks agree. After a restart, clicks take the log-odds of that time.

Order is kept: with 1 + a > 0 the layer changes no ranking at any moment.

`kind = "isotonic"` has a number for each of many log-odds instead of two for all: see
`learner.calibration.isotonic`. `kind = "shrinkage"` mixes the model with the click rate:
`learner.calibration.shrinkage`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Kind
from headrace.learner.inputs.example_inputs import LabelledColumns, counts_of, weight_of
from headrace.learner.inputs.statistics import empty_memory, keep, recall, with_room
from headrace.learner.kernels.loss import probability_of
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.kernels.row_counters import count_row
from headrace.learner.kernels.row_lookup import bucket_at, shift_of
from headrace.learner.spec.calibration_spec import CALIBRATION_NUMBER, Calibration
from headrace.pserver.rows.table import RowTable, find, find_or_add
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel

SHOWN, CLICKED, CLOSED = int(Kind.SHOWN), int(Kind.CLICKED), int(Kind.CLOSED)
STEPS = 2000.0
"""Steps in one unit of log-odds, which are remembered as whole numbers."""
FARTHEST = 15.0
"""Log-odds are clipped here before scaling: single precision has no odds beyond it."""
_LONGEST = 4.0
"""The most that one example moves an answer, in log-odds."""
_SLOPE = (0x6C62272E07BB0142 & ~1023) | CALIBRATION_NUMBER
_OFFSET = (0xE220A8397B1DCDAF & ~1023) | CALIBRATION_NUMBER


def layer_ids(first: int, count: int) -> npt.NDArray[np.uint64]:
    """Return ids for the rows of a layer, in buckets far from each other, from a number on.

    Stored rows depend on these. Each kind of calibration has numbers of its own.
    """
    hashes = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (hashes & ~np.uint64(1023)) | np.uint64(CALIBRATION_NUMBER)


class PlattScale(NamedTuple):
    """The layer, as kernels take it."""

    alpha: float
    ids: npt.NDArray[np.uint64]  # (2,) of a, of b
    places: npt.NDArray[np.int64]  # (2,) working memory
    live: npt.NDArray[np.bool_]  # (2,)
    promised: npt.NDArray[np.int16]  # (1,) log-odds of one impression, in steps


class PlattScaling:
    """Calibrates what a model scored. One thread learns; any number may apply."""

    ids = np.array([_SLOPE, _OFFSET], np.uint64)
    """The ids of its rows."""

    _levels = 1
    """Log-odds that are remembered of each impression."""

    def __init__(
        self, calibration: Calibration, window_ms: int, first_log_odds: float = 0.0
    ) -> None:
        """first_log_odds: of the model before it learned anything."""
        self._alpha, self._window_ms = calibration.alpha, window_ms
        self._first_log_odds = first_log_odds
        self.memory = empty_memory(self._levels)

    def apply(
        self,
        view: RowTable,
        scores: npt.NDArray[np.float64],
    ) -> None:
        """Replace the model's probabilities with the calibrated ones. Adds no row; NaN stays."""
        apply, _ = self._kernels()
        apply(view.columns, self._layer(), scores)

    def learn(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        labelled: LabelledColumns,
        scores: npt.NDArray[np.float64],
    ) -> None:
        """Calibrate each slate in turn, as `apply` does, and then learn it.

        scores: (n,) of all examples, clicks too. A row whose bucket is not active stays.
        """
        shown = int(np.count_nonzero(labelled.kinds == Kind.SHOWN))
        self.memory = with_room(self.memory, shown)
        remembered = self.memory, self._window_ms
        _, learn = self._kernels()
        raw = scores.copy()  # the model's own, which `scores` loses slate by slate
        learn(view.columns, gaining, active, self._layer(), remembered, labelled, raw, scores)

    def _layer(self) -> Any:
        """Return constants and working memory, for the two kernels."""
        places, live, promised = np.empty(2, np.int64), np.empty(2, np.bool_), np.empty(1, np.int16)
        return PlattScale(self._alpha, self.ids, places, live, promised)

    def _kernels(self) -> tuple[Any, Any]:
        return _apply, _learn


@inlined_ieee_division
def log_odds(p):  # type: ignore[no-untyped-def]
    """Return the log-odds of a probability, never infinite."""
    if not 0.0 < p < 1.0:
        return FARTHEST if p > 0.5 else -FARTHEST
    return min(max(math.log(p / (1.0 - p)), -FARTHEST), FARTHEST)


@inlined
def value_at(columns, place):  # type: ignore[no-untyped-def]
    """Return the sum of the gains of a row of the layer."""
    return columns.values[place, 0] if place >= 0 else np.float32(0.0)


@inlined
def _calibrated(columns, places, z):  # type: ignore[no-untyped-def]
    a, b = value_at(columns, places[0]), value_at(columns, places[1])
    return probability_of((1.0 + a) * z + b)


@kernel
def _apply(columns, scale, scores):  # type: ignore[no-untyped-def]
    for k in range(2):
        scale.places[k] = find(columns.slots, columns.ids, scale.ids[k])
    for i in range(scores.shape[0]):
        if not math.isnan(scores[i]):  # NaN must reach the caller: the model is broken
            scores[i] = _calibrated(columns, scale.places, log_odds(scores[i]))


@inlined
def predicted_at(remembered, labelled, i, promised, z):  # type: ignore[no-untyped-def]
    """Return the log-odds that example i was shown with; remember those of what is shown now."""
    kind, (memory, window_ms) = labelled.kinds[i], remembered
    if kind == CLOSED:
        return z
    if recall(memory, labelled.impressions[i], promised):
        return promised[0] / STEPS if kind == CLICKED else z
    if kind == SHOWN:
        promised[0] = np.int16(round(z * STEPS))
        keep(memory, labelled.impressions[i], promised, labelled.shown_ms[i], window_ms)
    return z


@inlined
def gradient_of(kind, label, p):  # type: ignore[no-untyped-def]
    """Return the slope of the loss by the log-odds; under `immediate` it is positive-unlabelled."""
    if kind == CLOSED:
        return p - label
    return -1.0 if kind == CLICKED else p


@inlined_ieee_division
def gain_of(alpha, slope, weight, p, squares):  # type: ignore[no-untyped-def]
    """Return the step of an example at the probability p, of which rows take their shares.

    squares: the sum of the squared shares. The answer moves by the step times `squares`.
    """
    gain = -alpha * slope / (1.0 + 0.25 * alpha * squares) * weight
    more = max(weight - 1.0, 0.0)
    gain /= 1.0 + 0.5 * alpha * squares * p * (1.0 - p) * more
    return min(max(gain, -_LONGEST / squares), _LONGEST / squares)


@inlined
def find_layer(columns, active, layer):  # type: ignore[no-untyped-def]
    """Find the layer's rows, adding those whose bucket is active."""
    shift, ids, places, live = shift_of(active.shape[0]), layer.ids, layer.places, layer.live
    for k in range(ids.shape[0]):
        live[k] = active[bucket_at(ids[k], shift)]
        if live[k]:
            places[k] = find_or_add(columns, ids[k])
        else:
            places[k] = find(columns.slots, columns.ids, ids[k])


@inlined
def add_to(columns, gaining, layer, k, gain, counted):  # type: ignore[no-untyped-def]
    """Add what its row number k gained from an example, if its bucket is active."""
    if layer.live[k]:
        place, own, (shows, clicks, second) = layer.places[k], np.float32(gain), counted
        columns.values[place, 0] += own
        gaining.values[place, 0] += own
        count_row(columns, gaining, place, shows, clicks, second)


@kernel
def _learn(columns, gaining, active, scale, remembered, labelled, raw, scores):  # type: ignore[no-untyped-def]
    find_layer(columns, active, scale)
    begin = 0
    while begin < scores.shape[0]:
        end = labelled.ends[begin]
        for i in range(begin, end):
            if not math.isnan(scores[i]):
                scores[i] = _calibrated(columns, scale.places, log_odds(raw[i]))
        for i in range(begin, end):
            p = scores[i]
            if math.isnan(p):
                continue  # the guard must find NaN, and no row may learn it
            z = predicted_at(remembered, labelled, i, scale.promised, log_odds(raw[i]))
            slope = gradient_of(labelled.kinds[i], labelled.labels[i], p)
            weight = np.float64(weight_of(labelled, i))
            gain = gain_of(scale.alpha, slope, weight, p, 1.0 + z * z)
            counted = counts_of(labelled, i)
            add_to(columns, gaining, scale, 0, gain * z, counted)
            add_to(columns, gaining, scale, 1, gain, counted)
        begin = end
