"""Mixes the model with the click rate, so that no model answers much worse than a constant.

    [calibration]
    kind = "shrinkage"

A model with few clicks, with rates that are too high, or after a sudden drift can be worse than a
constant for thousands of examples. Three experts answer here, of which each pulls the log-odds z of
the model towards b, those of the click rate:

    b                the click rate of the last 1 / alpha clicks
    (z + b) / 2      the model, halfway to it
    z                the model

The answer is the mean of their probabilities, weighted by exp(-loss) of each so far (the
aggregating algorithm: Vovk, "A game of prediction with expert advice", JCSS 1998). For the
logarithmic loss, the total is then at most ln 3 above that of the best expert. Losses are forgotten
over the last 1 / alpha clicks (dynamic model averaging: Raftery, Kárný and Ettler, "Online
prediction under model uncertainty via dynamic model averaging", Technometrics 2010), and no expert
falls below exp(-10) of another, so that each can return (tracking the best expert: Herbster and
Warmuth, Machine Learning 1998). Unlike Platt scaling, this needs no learning rate to suit the click
rate: ten clicks are enough to leave a model that is far off.

b starts at `base_rate` and moves by 1 / (2 + clicks) of the gradient at first, then by alpha. The
rows are b and, for the first two experts, their loss above that of the model: differences stay
small, and single precision keeps small steps of them. Under `immediate`, a show adds the loss of a
negative. Its click takes that back and adds the loss of a positive, at the log-odds of the show,
which are remembered as for Platt scaling. Delay, weights, pushes and several learners are handled
as there. All experts rise with z, so the layer changes no ranking within a request.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.calibration.platt import (
    CLICKED,
    CLOSED,
    FARTHEST,
    SHOWN,
    STEPS,
    PlattScaling,
    add_to,
    find_layer,
    gain_of,
    gradient_of,
    layer_ids,
    log_odds,
    value_at,
)
from headrace.learner.inputs.example_inputs import counts_of, weight_of
from headrace.learner.inputs.statistics import keep, recall
from headrace.learner.kernels.loss import probability_of
from headrace.pserver.rows.table import find
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel

_LARGEST = 10.0
"""The most nats by which an expert falls behind another."""
_FIRST_CLICKS = 2.0
"""Clicks that the first click rate is worth."""
_RATE, _SHRUNK, _HALVED = 0, 1, 2
"""Rows: b, and the losses of b and of halfway above that of the model."""


class ShrinkageExperts(NamedTuple):
    """The layer, as kernels take it."""

    alpha: float
    first_log_odds: float
    """b before anything is learned."""
    ids: npt.NDArray[np.uint64]  # (3,)
    places: npt.NDArray[np.int64]  # (3,) working memory, as all below
    live: npt.NDArray[np.bool_]  # (3,)
    promised: npt.NDArray[np.int16]  # (2,) z and b of one impression, in steps
    weights: npt.NDArray[np.float64]  # (3,) of the experts


class ShrinkageMixture(PlattScaling):
    """Mixes what a model scored with the click rate. One thread learns; any number may apply."""

    ids = layer_ids(101, 3)
    _levels = 2

    def _layer(self) -> Any:
        return ShrinkageExperts(
            self._alpha,
            self._first_log_odds,
            self.ids,
            np.empty(3, np.int64),
            np.empty(3, np.bool_),
            np.empty(2, np.int16),
            np.empty(3),
        )

    def _kernels(self) -> tuple[Any, Any]:
        return _apply, _learn


@inlined
def _bounded(shrunk, halved):  # type: ignore[no-untyped-def]
    """Return losses above that of the model, none more than `_LARGEST` above the least."""
    most = min(shrunk, halved, 0.0) + _LARGEST
    model = min(0.0, most)
    return min(shrunk, most) - model, min(halved, most) - model


@inlined
def _losses(columns, experts):  # type: ignore[no-untyped-def]
    """Return what the rows hold, within the bounds also after folds of several learners."""
    shrunk = np.float64(value_at(columns, experts.places[_SHRUNK]))
    return _bounded(shrunk, np.float64(value_at(columns, experts.places[_HALVED])))


@inlined_ieee_division
def _weigh(columns, experts):  # type: ignore[no-untyped-def]
    """Leave the weights of the experts; return b."""
    weights, (shrunk, halved) = experts.weights, _losses(columns, experts)
    least = min(shrunk, halved, 0.0)
    weights[0], weights[1], weights[2] = (
        math.exp(least - shrunk),
        math.exp(least - halved),
        math.exp(least),
    )
    total = weights[0] + weights[1] + weights[2]
    for k in range(3):
        weights[k] /= total
    b = experts.first_log_odds + np.float64(value_at(columns, experts.places[_RATE]))
    return min(max(b, -FARTHEST), FARTHEST)


@inlined
def _mixed(weights, z, b):  # type: ignore[no-untyped-def]
    found = weights[0] * probability_of(b) + weights[1] * probability_of(0.5 * (z + b))
    return found + weights[2] * probability_of(z)


@kernel
def _apply(columns, experts, scores):  # type: ignore[no-untyped-def]
    for k in range(3):
        experts.places[k] = find(columns.slots, columns.ids, experts.ids[k])
    b = _weigh(columns, experts)
    for i in range(scores.shape[0]):
        if not math.isnan(scores[i]):  # NaN must reach the caller: the model is broken
            scores[i] = _mixed(experts.weights, log_odds(scores[i]), b)


@inlined
def promised_at(remembered, labelled, i, promised, z, b):  # type: ignore[no-untyped-def]
    """Return z and b that example i was shown with; remember those of what is shown now."""
    kind, (memory, window_ms) = labelled.kinds[i], remembered
    if kind == CLOSED:
        return z, b
    if recall(memory, labelled.impressions[i], promised):
        if kind == CLICKED:
            return promised[0] / STEPS, promised[1] / STEPS
    elif kind == SHOWN:
        promised[0], promised[1] = np.int16(round(z * STEPS)), np.int16(round(b * STEPS))
        keep(memory, labelled.impressions[i], promised, labelled.shown_ms[i], window_ms)
    return z, b


@inlined_ieee_division
def _negative_loss(z):  # type: ignore[no-untyped-def]
    """Return the loss of an impression without a click at these log-odds."""
    return math.log1p(math.exp(-abs(z))) + max(z, 0.0)


@inlined
def _lag(kind, label, z, other):  # type: ignore[no-untyped-def]
    """Return the loss of an expert with log-odds `other` above that of the model.

    A click takes back the loss of its show: log(p / (1 - p)) is what remains.
    """
    if kind == CLICKED:
        return z - other
    found = _negative_loss(other) - _negative_loss(z)
    return found + z - other if kind == CLOSED and label else found


@inlined_ieee_division
def _rate_gain(columns, experts, labelled, i, b):  # type: ignore[no-untyped-def]
    place, p = experts.places[_RATE], probability_of(b)
    clicks = np.float64(columns.clicks[place]) if place >= 0 else 0.0
    alpha = max(experts.alpha, 1.0 / (_FIRST_CLICKS + clicks))
    slope = gradient_of(labelled.kinds[i], labelled.labels[i], p)
    return gain_of(alpha, slope, np.float64(weight_of(labelled, i)), p, 1.0)


@inlined
def _loss_gains(columns, experts, more, kept):  # type: ignore[no-untyped-def]
    """Return what the rows of losses gain from more[0] and more[1]; kept: of what they hold."""
    shrunk = np.float64(value_at(columns, experts.places[_SHRUNK]))
    halved = np.float64(value_at(columns, experts.places[_HALVED]))
    after = _bounded(kept * shrunk + more[0], kept * halved + more[1])
    return after[0] - shrunk, after[1] - halved


@kernel
def _learn(columns, gaining, active, experts, remembered, labelled, raw, scores):  # type: ignore[no-untyped-def]
    find_layer(columns, active, experts)
    begin = 0
    while begin < scores.shape[0]:
        end = labelled.ends[begin]
        shown_b = _weigh(columns, experts)
        for i in range(begin, end):
            if not math.isnan(scores[i]):
                scores[i] = _mixed(experts.weights, log_odds(raw[i]), shown_b)
        for i in range(begin, end):
            if math.isnan(raw[i]):
                continue  # the guard must find NaN, and no row may learn it
            kind, label, counted = labelled.kinds[i], labelled.labels[i], counts_of(labelled, i)
            z, b = promised_at(remembered, labelled, i, experts.promised, log_odds(raw[i]), shown_b)
            weight = np.float64(weight_of(labelled, i))
            forgotten = 0.0 if kind == CLICKED else min(experts.alpha * weight * scores[i], 1.0)
            more = weight * _lag(kind, label, z, b), weight * _lag(kind, label, z, 0.5 * (z + b))
            shrunk, halved = _loss_gains(columns, experts, more, 1.0 - forgotten)
            rate = np.float64(value_at(columns, experts.places[_RATE])) + experts.first_log_odds
            gain = _rate_gain(columns, experts, labelled, i, rate)
            add_to(columns, gaining, experts, _RATE, gain, counted)
            add_to(columns, gaining, experts, _SHRUNK, shrunk, counted)
            add_to(columns, gaining, experts, _HALVED, halved, counted)
        begin = end
