"""Fits a mixture of exponential distributions to the delays of clicks.

The groups have equal shares, so a mixture is a list of means (`learner.inputs.click_delays`).
Expectation maximization fits the means (Dempster, Laird and Rubin, "Maximum likelihood from
incomplete data via the EM algorithm", 1977). It begins with the means of equally many quantiles.
Mixtures of exponentials reach every distribution whose density falls with its derivatives
alternating in sign (Bernstein), such as Weibull's with a shape below 1, and come close to lognormal
ones with long tails.
"""

import numpy as np
import numpy.typing as npt

_GROUPS = 8
_ROUNDS = 200
_MOST_DELAYS = 10_000
_LEAST_S = 0.001
_ALIKE = 1.5
"""Largest ratio of two means at which all delays are one group."""


def delay_mixture(delays_s: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Return the means of groups of equally many clicks, rising; one if delays are exponential.

    delays_s: (clicks,) from a show to its click. Empty without clicks.
    """
    if not delays_s.shape[0]:
        return ()
    delays = np.sort(np.maximum(delays_s, _LEAST_S))
    mean_s = float(delays.mean())
    delays = delays[:: -(-delays.shape[0] // _MOST_DELAYS)]
    if delays.shape[0] < _GROUPS:
        return (mean_s,)
    means = np.array([part.mean() for part in np.array_split(delays, _GROUPS)])
    for _ in range(_ROUNDS):
        likelihood = -delays[:, None] / means - np.log(means)
        likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
        share = likelihood / likelihood.sum(axis=1, keepdims=True)
        means = (share * delays[:, None]).sum(axis=0) / share.sum(axis=0)
    if means.max() <= _ALIKE * means.min():
        return (mean_s,)
    return tuple(float(each) for each in np.sort(means))
