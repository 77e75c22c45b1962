"""Probabilities from sums of weights, and the slope of the loss for each label policy. Compiled."""

from __future__ import annotations

import math

from headrace.ingest.examples import Kind
from headrace.ingest.runtime import inlined, inlined_ieee_division

_CLICKED, _CLOSED = int(Kind.CLICKED), int(Kind.CLOSED)
_MOST_WEIGHED = 0.8
"""The largest p that weighs a negative which may turn out positive: see `gradient_of`."""


_FARTHEST = 35.0
"""Sums are clipped here: the probability is never 0 or 1, and its logarithm is finite."""


@inlined_ieee_division
def probability_of(total):  # type: ignore[no-untyped-def]
    """Return the probability of a click whose log-odds are `total`."""
    return 1.0 / (1.0 + math.exp(-min(max(total, -_FARTHEST), _FARTHEST)))


@inlined
def gradient_of(kind, label, p):  # type: ignore[no-untyped-def]
    """Return the derivative of the loss of an example of weight 1 by the sum of the weights.

    A closed impression has its label: p - y. With `immediate` every click was first shown as a
    negative, so the stream's rate is biased: p / (1 + p) of its examples are positive. The
    fake-negative-weighted loss of Ktena et al. ("Addressing Delayed Feedback for Continuous
    Training with Neural Networks in CTR prediction", RecSys 2019) weighs the examples by
    importance back to the true distribution, no gradient passing through the weights:

        positives by 1 + p, negatives by (1 - p)(1 + p)

    so that a click moves the sum by -(1 + p)(1 - p), a show by (1 - p)(1 + p) p: zero in
    expectation exactly where p is the rate of clicks.

    Near p = 1 a show weighs nothing, and a model that a burst of clicks took there would never
    return. So the p of the weights is capped at `_MOST_WEIGHED`: nothing changes where the rate of
    clicks is lower, and above it the model predicts a little less than the rate.
    """
    if kind == _CLOSED:
        return p - label
    weighed = min(p, _MOST_WEIGHED)
    if kind == _CLICKED:
        return -(1.0 + weighed) * (1.0 - p)
    return (1.0 - weighed) * (1.0 + weighed) * p
