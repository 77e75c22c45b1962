"""Calibrates a score by those of the other candidates of the request.

    [calibration]
    kind = "request"

A user who sees one strong candidate among weak ones clicks it more often than the same candidate
among strong ones. A model that scores each candidate by itself cannot express this. With z_i the
log-odds that the model gives candidate i, the answer is

    sigmoid((1 + a) z_i + b + c g_i)        g_i = log(1 + 2 sum of exp(z_j), j other than i)

where j runs over the candidates of the request. With c = -1 this is the softmax of a choice between
the candidates and none of them (the conditional logit: McFadden, "Conditional logit analysis of
qualitative choice behavior", 1974). With c = 0, where it starts, it is Platt scaling. a, b and c
are learned online as there (`learner.calibration.platt`), c never above 0.

Within a request, a larger z_i has a larger answer, because g_i falls while z_i rises: the layer
changes no ranking within a request. It changes the answers of different requests relative to each
other. A candidate by itself has g = 0.

*Limits:* learners compare the impressions that were shown, servers the candidates that they were
asked for. If far more candidates are ranked than shown, the answers of servers are too low, though
in the same order. Down-sampled negatives are missing from the sum, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace.ingest.runtime import inlined, inlined_ieee_division, kernel
from headrace.learner.calibration.platt import (
    PlattScaling,
    add_to,
    find_layer,
    gain_of,
    gradient_of,
    layer_ids,
    log_odds,
    value_at,
)
from headrace.learner.calibration.shrinkage import promised_at
from headrace.learner.inputs import counts_of, weight_of
from headrace.learner.kernels import probability_of
from headrace.pserver.rows import find

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.pserver.rows import RowTable

_NONE = 0.5
"""Odds of a click on none of the candidates, as the sum counts them: chosen on the first half of a
week of news, where 0.2 to 0.5 were alike."""
_STRONGEST = 4.0
"""Log-odds of a competitor are clipped here, so that g of 512 competitors is at most 12."""


class CompetitionScale(NamedTuple):
    """The layer, as kernels take it."""

    alpha: float
    ids: npt.NDArray[np.uint64]  # (3,) of a, b, c
    places: npt.NDArray[np.int64]  # (3,) working memory, as all below
    live: npt.NDArray[np.bool_]  # (3,)
    promised: npt.NDArray[np.int16]  # (2,) z and g of one impression, in steps


class CompetitionScaling(PlattScaling):
    """Calibrates what a model scored, by request. One thread learns; any number may apply."""

    ids = layer_ids(201, 3)
    _levels = 2

    def apply(
        self,
        view: RowTable,
        scores: npt.NDArray[np.float64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Put the calibrated probabilities in the place of the model's own. Adds no row."""
        if ends is None:
            ends = np.full(scores.shape[0], scores.shape[0], np.int64)
        _apply(view.columns, self._layer(), np.ascontiguousarray(ends, np.int64), scores)

    def _layer(self) -> Any:
        places, live, promised = np.empty(3, np.int64), np.empty(3, np.bool_), np.empty(2, np.int16)
        return CompetitionScale(self._alpha, self.ids, places, live, promised)

    def _kernels(self) -> tuple[Any, Any]:
        return _apply, _learn


@inlined
def _odds(p):  # type: ignore[no-untyped-def]
    return math.exp(min(log_odds(p), _STRONGEST))


@inlined
def _total(scores, begin, end):  # type: ignore[no-untyped-def]
    """Return the sum of the odds of a request. NaN counts as no candidate."""
    total = 0.0
    for i in range(begin, end):
        if not math.isnan(scores[i]):
            total += _odds(scores[i])
    return total


@inlined_ieee_division
def _competition(total, p):  # type: ignore[no-untyped-def]
    """Return g of a candidate with the score p."""
    return math.log1p(max(total - _odds(p), 0.0) / _NONE)


@inlined
def _answer(columns, places, z, g):  # type: ignore[no-untyped-def]
    a, b = value_at(columns, places[0]), value_at(columns, places[1])
    c = min(value_at(columns, places[2]), np.float32(0.0))  # several learners may fold above 0
    return probability_of((1.0 + a) * z + b + c * g)


@kernel
def _apply(columns, scale, ends, scores):  # type: ignore[no-untyped-def]
    for k in range(3):
        scale.places[k] = find(columns.slots, columns.ids, scale.ids[k])
    begin = 0
    while begin < scores.shape[0]:
        end = ends[begin]
        total = _total(scores, begin, end)
        for i in range(begin, end):
            if not math.isnan(scores[i]):  # NaN must reach the caller: the model is broken
                g = _competition(total, scores[i])
                scores[i] = _answer(columns, scale.places, log_odds(scores[i]), g)
        begin = end


@kernel
def _learn(columns, gaining, active, scale, remembered, labelled, asked, scores):  # type: ignore[no-untyped-def]
    find_layer(columns, active, scale)
    begin = 0
    while begin < scores.shape[0]:
        end = labelled.ends[begin]
        total = _total(asked, begin, end)
        for i in range(begin, end):
            if not math.isnan(scores[i]):
                g = _competition(total, asked[i])
                scores[i] = _answer(columns, scale.places, log_odds(asked[i]), g)
        for i in range(begin, end):
            p = scores[i]
            if math.isnan(p):
                continue  # the guard must find NaN, and no row may learn it
            z, g = promised_at(
                *(remembered, labelled, i, scale.promised),
                *(log_odds(asked[i]), _competition(total, asked[i])),
            )
            slope = gradient_of(labelled.kinds[i], labelled.labels[i], p)
            weight = np.float64(weight_of(labelled, i))
            gain = gain_of(scale.alpha, slope, weight, p, 1.0 + z * z + g * g)
            counted = counts_of(labelled, i)
            c = np.float64(value_at(columns, scale.places[2]))
            add_to(columns, gaining, scale, 0, gain * z, counted)
            add_to(columns, gaining, scale, 1, gain, counted)
            add_to(columns, gaining, scale, 2, min(c + gain * g, 0.0) - c, counted)
        begin = end
