"""The rule that the guard had before: the mean loss against a multiple of its running mean."""

import math

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind

_RATIO = 4.0
_LEAST_EXAMPLES = 100
_WARM_UP = 10_000
_MEMORY = 100_000


class OldRule:
    """Quarantines a batch whose mean loss is above four times the running mean."""

    def __init__(self) -> None:
        self._seen, self._mean = 0, 0.0

    def quarantines(self, examples: Examples, scores: npt.NDArray[np.float64]) -> bool:
        """Return whether a batch with these scores is quarantined; move the running mean."""
        scored = examples.kinds != Kind.CLICKED
        made, labels = scores[scored], examples.labels[scored]
        count = made.shape[0]
        if not count:
            return False
        with np.errstate(divide="ignore"):
            loss = float(-np.log(np.where(labels > 0, made, 1.0 - made)).mean())
        bound = _RATIO * self._mean if self._seen >= _WARM_UP else math.inf
        self._seen += count
        share = min(max(count / _MEMORY, count / self._seen), 1.0)
        self._mean += share * (min(loss, bound) - self._mean)
        return count >= _LEAST_EXAMPLES and loss > bound
