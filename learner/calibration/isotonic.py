"""Isotonic calibration, learned online: one correction for each of many log-odds, made monotone.

    [calibration]
    kind = "isotonic"

A model may predict too little at low probabilities and too much in the middle; two numbers
(`learner.calibration.platt`) cannot mend both. Here there is a knot at every half of a unit of
log-odds from -8 to 4, each with one number v. At the knot z the answer has log-odds z + v. Between
two knots v is interpolated, beyond the last ones it is constant. An example steps the two knots
around it, each by its share, as Platt's numbers are stepped: along the gradient of the cross
entropy, with a constant rate, so that recent outcomes count. Delay, weights, rows, pushes and
several learners are handled as there; each knot is a row.

The learned values are not monotone, by chance. So answers are made from the nearest monotone ones:
knots that fall are pooled, weighted by their impressions (pool adjacent violators: Barlow et al.,
"Statistical inference under order restrictions", 1972; for probabilities: Zadrozny and Elkan,
KDD 2002). Each knot goes on learning from the answer it would have given unpooled. Isotonic
regression makes ties, which cost ranking. So the line must rise with at least a twentieth of the
model's own slope, and the layer changes no ranking at any moment.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.calibration.platt import (
    PlattScaling,
    add_to,
    find_layer,
    gain_of,
    gradient_of,
    layer_ids,
    log_odds,
    predicted_at,
    value_at,
)
from headrace.learner.inputs.example_inputs import counts_of, weight_of
from headrace.learner.kernels.loss import probability_of
from headrace.pserver.rows.table import find
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel

_LOWEST, _BETWEEN, _KNOTS = -8.0, 0.5, 25
_LEAST_SLOPE = 0.05


class IsotonicKnots(NamedTuple):
    """The layer, as kernels take it."""

    alpha: float
    ids: npt.NDArray[np.uint64]  # (knots,)
    places: npt.NDArray[np.int64]  # (knots,) working memory, as all below
    live: npt.NDArray[np.bool_]  # (knots,)
    promised: npt.NDArray[np.int16]  # (1,) log-odds of one impression, in steps
    rising: npt.NDArray[np.float64]  # (knots,) log-odds of the answer at each
    sizes: npt.NDArray[np.float64]  # (knots,) of pools: impressions
    members: npt.NDArray[np.int64]  # (knots,) of pools: knots


class IsotonicScaling(PlattScaling):
    """Calibrates what a model scored. One thread learns; any number may apply."""

    ids = layer_ids(1, _KNOTS)

    def _layer(self) -> Any:
        return IsotonicKnots(
            self._alpha,
            self.ids,
            np.empty(_KNOTS, np.int64),
            np.empty(_KNOTS, np.bool_),
            np.empty(1, np.int16),
            np.empty(_KNOTS),
            np.empty(_KNOTS),
            np.empty(_KNOTS, np.int64),
        )

    def _kernels(self) -> tuple[Any, Any]:
        return _apply, _learn


@inlined
def _position(z):  # type: ignore[no-untyped-def]
    """Return the knot at or below z, and how far z is towards the next."""
    at = min(max((z - _LOWEST) / _BETWEEN, 0.0), _KNOTS - 1.0)
    k = min(int(at), _KNOTS - 2)
    return k, at - k


@inlined_ieee_division
def _pool(columns, knots):  # type: ignore[no-untyped-def]
    """Write the log-odds of the answer at each knot to `rising`."""
    rising, sizes, members, pools = knots.rising, knots.sizes, knots.members, 0
    for k in range(_KNOTS):
        place = knots.places[k]
        shows = np.float64(columns.shows[place]) if place >= 0 else 0.0
        rising[pools] = (1.0 - _LEAST_SLOPE) * (_LOWEST + k * _BETWEEN)
        rising[pools] += value_at(columns, place)
        sizes[pools], members[pools] = 1.0 + shows, 1
        pools += 1
        while pools > 1 and rising[pools - 2] > rising[pools - 1]:
            one, other = pools - 2, pools - 1
            size = sizes[one] + sizes[other]
            rising[one] = (rising[one] * sizes[one] + rising[other] * sizes[other]) / size
            sizes[one] = size
            members[one] += members[other]
            pools -= 1
    # from the last one on: a pool never has a higher index than the knots in it
    k = _KNOTS
    for j in range(pools - 1, -1, -1):
        level = rising[j]
        for _ in range(members[j]):
            k -= 1
            rising[k] = level + _LEAST_SLOPE * (_LOWEST + k * _BETWEEN)


@inlined
def _answer(rising, z):  # type: ignore[no-untyped-def]
    k, share = _position(z)
    on_line = (1.0 - share) * rising[k] + share * rising[k + 1]
    return probability_of(on_line + z - (_LOWEST + (k + share) * _BETWEEN))


@kernel
def _apply(columns, knots, scores):  # type: ignore[no-untyped-def]
    for k in range(_KNOTS):
        knots.places[k] = find(columns.slots, columns.ids, knots.ids[k])
    _pool(columns, knots)
    for i in range(scores.shape[0]):
        if not math.isnan(scores[i]):  # NaN must reach the caller: the model is broken
            scores[i] = _answer(knots.rising, log_odds(scores[i]))


@kernel
def _learn(columns, gaining, active, knots, remembered, labelled, raw, scores):  # type: ignore[no-untyped-def]
    find_layer(columns, active, knots)
    places, begin = knots.places, 0
    while begin < scores.shape[0]:
        end = labelled.ends[begin]
        _pool(columns, knots)
        for i in range(begin, end):
            if not math.isnan(scores[i]):
                scores[i] = _answer(knots.rising, log_odds(raw[i]))
        for i in range(begin, end):
            if math.isnan(raw[i]):
                continue  # the guard must find NaN, and no row may learn it
            z = predicted_at(remembered, labelled, i, knots.promised, log_odds(raw[i]))
            first, share = _position(z)
            unpooled = (1.0 - share) * value_at(columns, places[first])
            unpooled += share * value_at(columns, places[first + 1])
            p = probability_of(z + unpooled)
            slope = gradient_of(labelled.kinds[i], labelled.labels[i], p)
            weight = np.float64(weight_of(labelled, i))
            squares = (1.0 - share) * (1.0 - share) + share * share
            gain = gain_of(knots.alpha, slope, weight, p, squares)
            counted = counts_of(labelled, i)
            add_to(columns, gaining, knots, first, gain * (1.0 - share), counted)
            add_to(columns, gaining, knots, first + 1, gain * share, counted)
        begin = end
