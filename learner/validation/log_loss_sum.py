"""Log loss over data that is too large to keep: two sums, and the clicks; also by processes."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterable, MutableSequence

import numpy as np
import numpy.typing as npt

from headrace.learner.validation.progressive import entropy, log_losses


class LogLossSum:
    """The log loss of all impressions added so far."""

    SIZE = 3
    """Numbers that it keeps: the sums of losses, clicks and weights."""

    def __init__(self, sums: MutableSequence[float] | memoryview[float] | None = None) -> None:
        """sums: where to keep them, such as in memory that processes share."""
        self._sums = [0.0] * self.SIZE if sums is None else sums

    def add(
        self,
        labels: npt.NDArray[np.uint8],
        scores: npt.NDArray[np.float64],
        weights: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Add n impressions: labels 0 or 1, probabilities, weights or None for 1; each (n,)."""
        losses = log_losses(labels, scores)
        if weights is None:
            added = losses.sum(), labels.sum(), labels.shape[0]
        else:
            added = (losses * weights).sum(), (labels * weights).sum(), weights.sum()
        self._add(map(float, added))

    def include(self, other: LogLossSum) -> None:
        """Add the impressions of another one."""
        self._add(other._sums)

    @property
    def mean(self) -> float:
        """Mean negative log likelihood, in nats; NaN without impressions."""
        loss, _, weight = self._sums
        return loss / weight if weight else math.nan

    @property
    def normalized_entropy(self) -> float:
        """The mean over the entropy of the click rate; NaN without one of the labels."""
        _, clicks, weight = self._sums
        return self.mean / entropy(clicks / weight if weight else 0.0)

    def _add(self, amounts: Iterable[float]) -> None:
        for place, amount in enumerate(amounts):
            self._sums[place] += amount


class SharedLoss:
    """The sums of each file of a fit. Pickled for a new process, it is the same memory there.

    One process learns a file at a time, so no lock is needed. The process that started the others
    reads the sums while they learn.
    """

    def __init__(self, files: int) -> None:
        self._sums = multiprocessing.get_context("spawn").RawArray("d", LogLossSum.SIZE * files)

    def of_file(self, number: int) -> LogLossSum:
        """Return the sums of a file; what is added to them is shared."""
        begin = LogLossSum.SIZE * number
        sums = memoryview(self._sums).cast("B").cast("d")
        return LogLossSum(sums[begin : begin + LogLossSum.SIZE])

    def total(self) -> LogLossSum:
        """Return a copy of the sums over all files."""
        total = LogLossSum()
        for number in range(len(self._sums) // LogLossSum.SIZE):
            total.include(self.of_file(number))
        return total
