"""Log loss over data that is too large to keep: two sums, and the clicks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_LEAST = 1e-15
"""Probabilities are kept this far from 0 and 1, as in `progressive`."""


class LogLossSum:
    """The log loss of all impressions added so far."""

    def __init__(self) -> None:
        self._loss = self._clicks = self._weight = 0.0

    def add(
        self,
        labels: npt.NDArray[np.uint8],
        scores: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Add n impressions: labels 0 or 1, probabilities, weights or None for 1; each (n,)."""
        likely = np.clip(np.where(labels > 0, scores, 1.0 - scores), _LEAST, 1.0)
        losses = -np.log(likely)
        if weights is None:
            self._loss += float(losses.sum())
            self._clicks += float(labels.sum())
            self._weight += labels.shape[0]
        else:
            self._loss += float((losses * weights).sum())
            self._clicks += float((labels * weights).sum())
            self._weight += float(weights.sum())

    @property
    def mean(self) -> float:
        """Mean negative log likelihood, in nats; NaN without impressions."""
        return self._loss / self._weight if self._weight else math.nan

    @property
    def normalized_entropy(self) -> float:
        """The mean over the entropy of the click rate; NaN without one of the labels."""
        rate = self._clicks / self._weight if self._weight else 0.0
        if not 0.0 < rate < 1.0:
            return math.nan
        entropy = -(rate * math.log(rate) + (1.0 - rate) * math.log(1.0 - rate))
        return self.mean / entropy
