"""The weights of items of bags: pooling, and decay by position.

An item of a bag is an input whose value is its weight, so linear part and vectors of every model
have the same weights. The age r of an item is the number of items behind it, and its weight before
pooling is d^r, where d is the field's `decay`. `mean` divides by the sum of these weights, `sqrt`
by the square root of the sum of their squares: without decay, the weights are 1/n and 1/sqrt(n).
Under `sqrt` the length of a bag's gradient does not grow with the bag, and under `mean` the bag's
part of the score does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.fields import MEAN, SQRT, Field

if TYPE_CHECKING:
    from headrace.ingest.features.encoder import Encoded


Weights = npt.NDArray[np.float32]


class BagWeights:
    """The weights of the items of a model's bags."""

    def __init__(self, bags: Sequence[Field]) -> None:
        self._weighted = any(each.weighted for each in bags)
        self._none: Weights = np.zeros(0, np.float32)
        self._bags = len(bags)
        self._decays = np.array([each.decay for each in bags])
        self._means = np.array([each.pooling == MEAN for each in bags])
        self._roots = np.array([each.pooling == SQRT for each in bags])

    def __call__(self, encoded: Encoded) -> Weights:
        """Return the weight of each item, shape (items,), or (0,) if all of them are 1."""
        if not self._weighted:
            return self._none
        offsets = encoded.bag_offsets.astype(np.int64)
        lengths = np.diff(offsets)
        which = np.repeat(np.arange(lengths.shape[0]), lengths)
        ages = np.repeat(offsets[1:], lengths) - 1 - np.arange(which.shape[0])
        field = which % self._bags
        weights = self._decays[field] ** ages
        sums = np.bincount(which, weights, lengths.shape[0])
        roots = np.sqrt(np.bincount(which, weights * weights, lengths.shape[0]))
        means, by_root = self._means[field], self._roots[field]
        weights[means] /= sums[which[means]]
        weights[by_root] /= roots[which[by_root]]
        found: Weights = weights.astype(np.float32)
        return found
