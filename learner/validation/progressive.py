"""Progressive validation: the accuracy of scores made before their outcome was learned.

Each impression is scored once, when it is first seen, and only then learned. So every score is a
forecast and no data is held out (Blum, Kalai and Langford, "Beating the hold-out", COLT 1999). Pure
functions of columns, vectorized over millions of impressions. A figure that is undefined, for lack
of impressions or of one of the two labels, is NaN.

Impressions may have weights: an impression of weight k counts as k of them. With down-sampling
(`ingest.features.example_weights`) the figures are those of the whole stream, up to chance. With
weights of a producer's own they measure what the producer asked the model to be good at.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

LEAST = 1e-15
"""Probabilities are kept this far from 0 and 1, so that one certain mistake is not infinite."""


@dataclass(frozen=True, slots=True)
class ProgressiveValidation:
    """The five figures of a stream of scores."""

    auc: float
    """Probability that a clicked impression has a higher score than another one."""
    request_auc: float
    """The AUC within a request, averaged over the requests with both labels."""
    log_loss: float
    """Mean of -log of the probability given to the outcome, in nats."""
    normalized_entropy: float
    """Log loss divided by that of the mean click rate (He et al., ADKDD 2014, eq. 3)."""
    calibration: float
    """Predicted clicks (the sum of the scores) divided by actual clicks."""


def progressive(
    labels: Labels,
    scores: Floats,
    requests: npt.NDArray[np.int64] | None = None,
    weights: Floats | None = None,
) -> ProgressiveValidation:
    """Return the five figures of n impressions.

    labels: (n,) 1 if clicked; scores: (n,) probabilities; requests: (n,) a number equal for the
    impressions of one request, or None if there are no requests; weights: (n,) or None if each
    impression counts once.
    """
    return ProgressiveValidation(
        auc(labels, scores, weights),
        np.nan if requests is None else request_auc(labels, scores, requests, weights),
        log_loss(labels, scores, weights),
        normalized_entropy(labels, scores, weights),
        calibration(labels, scores, weights),
    )


def auc(labels: Labels, scores: Floats, weights: Floats | None = None) -> float:
    """Area under the ROC curve; a tie counts half (Mann-Whitney)."""
    return request_auc(labels, scores, np.zeros(labels.shape[0], np.int64), weights)


def request_auc(
    labels: Labels,
    scores: Floats,
    requests: npt.NDArray[np.int64],
    weights: Floats | None = None,
) -> float:
    """Mean of the requests' own AUC, over the requests that have both labels; ties count half."""
    each = request_aucs(labels, scores, requests, weights)
    return float(each.mean()) if each.shape[0] else float("nan")


def request_aucs(
    labels: Labels,
    scores: Floats,
    requests: npt.NDArray[Any],
    weights: Floats | None = None,
) -> Floats:
    """Return the AUC of each request that has both labels, in the order of their numbers.

    A pair of a clicked and an unclicked impression counts as the product of their weights.
    """
    if labels.shape[0] == 0:
        return np.zeros(0)
    order = np.lexsort((scores, requests))
    labels, scores, requests = labels[order], scores[order], requests[order]
    clicked = labels.astype(np.float64)
    negative = 1.0 - clicked
    if weights is not None:
        clicked, negative = clicked * weights[order], negative * weights[order]
    new_request = np.concatenate(([True], requests[1:] != requests[:-1]))
    new_score = new_request | np.concatenate(([True], scores[1:] != scores[:-1]))
    request, tie = np.cumsum(new_request) - 1, np.cumsum(new_score) - 1
    # of the negatives before a tie those of its own request, and half of those in it
    tied = np.bincount(tie, negative)
    before = np.cumsum(tied) - tied
    below = before[tie] - before[tie[np.flatnonzero(new_request)]][request] + 0.5 * tied[tie]
    positives, negatives = np.bincount(request, clicked), np.bincount(request, negative)
    wins = np.bincount(request, clicked * below)
    both = (positives > 0) & (negatives > 0)
    aucs: Floats = wins[both] / (positives[both] * negatives[both])
    return aucs


def log_loss(labels: Labels, scores: Floats, weights: Floats | None = None) -> float:
    """Mean negative log likelihood, in nats."""
    if labels.shape[0] == 0:
        return float("nan")
    return _mean(log_losses(labels, scores), weights)


def log_losses(labels: Labels, scores: Floats) -> Floats:
    """Return the negative log likelihood of each of n impressions, in nats."""
    losses: Floats = -np.log(np.clip(np.where(labels > 0, scores, 1.0 - scores), LEAST, 1.0))
    return losses


def normalized_entropy(labels: Labels, scores: Floats, weights: Floats | None = None) -> float:
    """Log loss over the entropy of the mean click rate: below 1 is better than knowing only that.

    He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014, eq. 3.
    """
    rate = _mean(labels, weights) if labels.shape[0] else 0.0
    return log_loss(labels, scores, weights) / entropy(rate)


def entropy(rate: float) -> float:
    """Return the log loss of a constant answer with the click rate; NaN without both labels."""
    if not 0.0 < rate < 1.0:
        return math.nan
    return -(rate * math.log(rate) + (1.0 - rate) * math.log(1.0 - rate))


def calibration(labels: Labels, scores: Floats, weights: Floats | None = None) -> float:
    """Clicks expected over clicks that came: above 1 the model predicts too much."""
    came = labels if weights is None else labels * weights
    clicks = float(came.sum())
    expected = scores if weights is None else scores * weights
    return float(expected.sum()) / clicks if clicks else float("nan")


def _mean(values: npt.NDArray[Any], weights: Floats | None) -> float:
    if weights is None:
        return float(values.mean())
    whole = float(weights.sum())
    return float((values * weights).sum()) / whole if whole else float("nan")
