"""Tests whether users of a log choose one candidate of a request, or click each by itself.

If each candidate is clicked by itself, some requests get several clicks by chance. Their expected
number follows from the click rate and the number of candidates. If the log has far fewer of them,
its users choose one candidate or none, and `loss = "choice"` is the model of that. With few clicks,
several in one request are rare either way. The two losses then hardly differ, and the default
stays.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_LEAST_EXPECTED = 30.0
"""Requests with several clicks that chance must give, so that their absence says something."""
_MOST_OBSERVED = 0.25
"""Share of these that a log of choices may have."""


class RequestClicks(NamedTuple):
    """The clicks of requests with several candidates."""

    requests: int
    candidates: float
    """Mean number in a request."""
    several: int
    """Requests with two clicks or more."""
    expected: float
    """The same, if each candidate were clicked by itself at the mean rate."""

    @property
    def choose(self) -> bool:
        """Whether users choose one candidate or none."""
        few = self.several <= _MOST_OBSERVED * self.expected
        return self.expected >= _LEAST_EXPECTED and few


def clicks_of_requests(
    requests: npt.NDArray[np.int64], labels: npt.NDArray[np.bool_]
) -> RequestClicks:
    """Return the clicks of n impressions; requests: (n,) numbers, -1 without a request."""
    known = requests >= 0
    candidates = np.bincount(requests[known])
    clicks = np.bincount(requests[known], labels[known])
    several = candidates > 1
    candidates, clicks = candidates[several], clicks[several]
    if not candidates.size:
        return RequestClicks(0, 0.0, 0, 0.0)
    rate = float(clicks.sum()) / float(candidates.sum())
    none = (1.0 - rate) ** candidates
    one = candidates * rate * (1.0 - rate) ** (candidates - 1)
    return RequestClicks(
        int(candidates.size),
        float(candidates.mean()),
        int(np.count_nonzero(clicks > 1)),
        float((1.0 - none - one).sum()),
    )
