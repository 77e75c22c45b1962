"""Probabilities from sums of weights, and the slope of the loss for each label policy. Compiled.

Under `loss = "logistic"` each candidate of a request is clicked or not by itself. Under
`loss = "choice"` the user clicks one of the candidates or none. With z_j the sum of the weights of
candidate j, the probability that candidate i is clicked is

    exp(z_i) / (1 + sum of exp(z_j) over the candidates of the request)

the conditional logit with the alternative of no click, whose utility is 0 (McFadden, "Conditional
logit analysis of qualitative choice behavior", 1974, eq. (12)). Its derivatives by z need no
candidate besides: p_i for a candidate that was not clicked, p_i - 1 for the one that was. With
`immediate`, a request is first learned as one without a click. The click then changes its
log-likelihood by z_i alone, hence by a slope of -1, so no other candidate is learned again. A
candidate by itself has the logistic probability.

Under `immediate` each click was first learned as a negative. Under the logistic loss, *importance
weights* correct for these negatives (`gradient_of`). They are part of the slope, and not of the
weight of an example (`ingest.features.example_weights`).
"""

import math

from headrace.ingest.examples.batch import Kind
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel

_CLICKED, _CLOSED = int(Kind.CLICKED), int(Kind.CLOSED)
_MOST_WEIGHED = 0.8
"""The largest p that weighs a negative which may turn out positive: see `gradient_of`."""


_FARTHEST = 35.0
"""Sums are clipped here: the probability is never 0 or 1, and its logarithm is finite."""


@inlined_ieee_division
def probability_of(total):  # type: ignore[no-untyped-def]
    """Return the probability of a click whose log-odds are `total`."""
    return 1.0 / (1.0 + math.exp(-min(max(total, -_FARTHEST), _FARTHEST)))


@inlined_ieee_division
def choose(scores, begin, end):  # type: ignore[no-untyped-def]
    """Turn logistic probabilities of candidates [begin, end) of one request into those of a choice.

    NaN counts as no candidate, and stays.
    """
    total = 1.0
    for i in range(begin, end):
        if not math.isnan(scores[i]):
            total += scores[i] / (1.0 - scores[i])
    for i in range(begin, end):
        scores[i] = scores[i] / (1.0 - scores[i]) / total


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


@inlined
def compete(labelled, scores, begin, end):  # type: ignore[no-untyped-def]
    """`choose` within the slate of examples [begin, end), where the loss is that of a choice."""
    if labelled.chosen:
        choose(scores, begin, end)


@inlined
def slope_of(labelled, i, p):  # type: ignore[no-untyped-def]
    """Return the derivative of the loss of example i by the sum of its weights.

    With a wait, only some clicks come as examples of their own, and which share is not known. The
    weights of `gradient_of` would be wrong for the others. Without weights, the slopes of an
    impression with a click add up to p - 1 whenever the click comes (the positive-unlabelled loss
    of the same paper), and if all clicks come within the wait, they are those of `window`.
    """
    kind, label = labelled.kinds[i], labelled.labels[i]
    if labelled.weighed:
        return gradient_of(kind, label, p)
    if kind == _CLICKED:
        return -1.0
    return p - label if kind == _CLOSED else p


@kernel
def choose_in_each(scores, ends):  # type: ignore[no-untyped-def]
    """`choose` in each request; ends: (n,) the first candidate after the request of each."""
    begin = 0
    while begin < scores.shape[0]:
        choose(scores, begin, ends[begin])
        begin = ends[begin]
