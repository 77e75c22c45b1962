"""How good scores are that were made before their outcome was learned (progressive validation).

Each impression is scored once, when it is first seen, and only then learned from; so every score is
a forecast and no data is held out (Blum, Kalai and Langford, "Beating the hold-out", COLT 1999).
Pure functions of columns, vectorized over millions of impressions. Where a figure is undefined,
for lack of impressions or of one of the two labels, it is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Labels = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float64]

_LEAST = 1e-15
"""Probabilities are kept this far from 0 and 1, so that one certain mistake is not infinite."""


@dataclass(frozen=True, slots=True)
class Progressive:
    """The five figures of a stream of scores."""

    auc: float
    """Chance that a clicked impression has a higher score than one that was not."""
    request_auc: float
    """The same within a request, averaged over the requests that have both."""
    log_loss: float
    """Mean of -log of the probability given to what happened, in nats."""
    normalized_entropy: float
    """Log loss over that of always answering the mean click rate (He et al., ADKDD 2014, eq. 3)."""
    calibration: float
    """Clicks expected (the sum of the scores) over clicks that came."""


def progressive(
    labels: Labels, scores: Floats, requests: npt.NDArray[np.int64] | None = None
) -> Progressive:
    """Return the five figures of n impressions.

    labels: (n,) 1 if clicked; scores: (n,) probabilities; requests: (n,) a number equal for the
    impressions of one request, or None if there are no requests.
    """
    return Progressive(
        auc(labels, scores),
        np.nan if requests is None else request_auc(labels, scores, requests),
        log_loss(labels, scores),
        normalized_entropy(labels, scores),
        calibration(labels, scores),
    )


def auc(labels: Labels, scores: Floats) -> float:
    """Area under the ROC curve; a tie counts half (Mann-Whitney)."""
    return request_auc(labels, scores, np.zeros(labels.shape[0], np.int64))


def request_auc(labels: Labels, scores: Floats, requests: npt.NDArray[np.int64]) -> float:
    """Mean of the requests' own AUC, over the requests that have both labels; ties count half."""
    each = request_aucs(labels, scores, requests)
    return float(each.mean()) if each.shape[0] else float("nan")


def request_aucs(labels: Labels, scores: Floats, requests: npt.NDArray[Any]) -> Floats:
    """Return the AUC of each request that has both labels, in the order of their numbers."""
    if labels.shape[0] == 0:
        return np.zeros(0)
    order = np.lexsort((scores, requests))
    labels, scores, requests = labels[order], scores[order], requests[order]
    positions = np.arange(labels.shape[0])
    new_request = np.concatenate(([True], requests[1:] != requests[:-1]))
    new_score = new_request | np.concatenate(([True], scores[1:] != scores[:-1]))
    request_starts = positions[new_request]
    request = np.cumsum(new_request) - 1
    # rank within the request, counted from 1; equal scores share their mean rank
    tie_starts = positions[new_score]
    tie_stops = np.append(tie_starts[1:], labels.shape[0])
    tie = np.cumsum(new_score) - 1
    ranks = (tie_starts + tie_stops - 1)[tie] / 2.0 - request_starts[request] + 1.0
    clicked = labels.astype(np.float64)
    positives = np.bincount(request, clicked)
    negatives = np.bincount(request) - positives
    both = (positives > 0) & (negatives > 0)
    rank_sums = np.bincount(request, ranks * clicked)
    wins = rank_sums - positives * (positives + 1.0) / 2.0
    aucs: Floats = wins[both] / (positives[both] * negatives[both])
    return aucs


def log_loss(labels: Labels, scores: Floats) -> float:
    """Mean negative log likelihood, in nats."""
    if labels.shape[0] == 0:
        return float("nan")
    likely = np.clip(np.where(labels > 0, scores, 1.0 - scores), _LEAST, 1.0)
    return float(-np.log(likely).mean())


def normalized_entropy(labels: Labels, scores: Floats) -> float:
    """Log loss over the entropy of the mean click rate: below 1 is better than knowing only that.

    He et al., "Practical Lessons from Predicting Clicks on Ads at Facebook", ADKDD 2014, eq. 3.
    """
    if labels.shape[0] == 0 or labels.min() == labels.max():
        return float("nan")
    rate = float(labels.mean())
    entropy = -(rate * np.log(rate) + (1.0 - rate) * np.log(1.0 - rate))
    return float(log_loss(labels, scores) / entropy)


def calibration(labels: Labels, scores: Floats) -> float:
    """Clicks expected over clicks that came: above 1 the model promises too much."""
    clicks = float(labels.sum())
    return float(scores.sum()) / clicks if clicks else float("nan")
