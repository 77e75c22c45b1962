"""Splits the log loss of a window into what the level, the slope and the rest contribute.

A window's log loss is compared with that of a constant that knows the click rate of the window.
Two corrections of the answers, both fitted to the labels of the window itself, tell why it is above
or below:

    level       what a shift of all log-odds would have gained: the mean answer was not the click
                rate
    slope       what a factor would have gained beside the shift: the answers were too spread, or
                ordered wrongly
    refinement  what remains: the loss of the corrected answers less that of the constant, at most 0

Level and slope are the calibration loss, by the two numbers of Platt scaling; such a split is from
DeGroot and Fienberg, "The comparison and evaluation of forecasters", The Statistician 1983. The
three add up to the normalized entropy less 1.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEPS = 60
_CHANCE_NATS = 1.92
"""Half of the 0.95 quantile of chi-squared with one degree of freedom (Wilks 1938)."""


class LossSplit(NamedTuple):
    """The parts of a window, as shares of the loss of the constant."""

    level: float
    slope: float
    refinement: float

    @property
    def total(self) -> float:
        """The normalized entropy less 1."""
        return self.level + self.slope + self.refinement


def split_loss(scores: Floats, labels: npt.NDArray[np.int8]) -> LossSplit:
    """Return the parts of the log loss of n scores. Both labels must occur."""
    kept = np.clip(scores, 1e-7, 1.0 - 1e-7)
    z, y = np.log(kept / (1.0 - kept)), labels.astype(np.float64)
    rate = float(y.mean())
    constant = float(-(rate * np.log(rate) + (1.0 - rate) * np.log1p(-rate)))
    shifted = _fitted(z, y, scaled=False)
    both = min(_fitted(z, y, scaled=True), shifted, constant)
    parts = _loss(z, y) - shifted, shifted - both, both - constant
    return LossSplit(*(part / constant for part in parts))


def chance_excess(labels: npt.NDArray[np.int8]) -> float:
    """Return the normalized entropy, less 1, that the true click rate exceeds by chance in 1 of 20.

    The rate of the window differs from the true one, because its clicks are random.
    """
    rate = float(labels.mean())
    constant = -(rate * np.log(rate) + (1.0 - rate) * np.log1p(-rate))
    return float(_CHANCE_NATS / (constant * labels.shape[0]))


def excess_in_errors(losses: Floats, others: Floats) -> float:
    """Return by how many standard errors the mean loss is above that of another prediction.

    The losses are paired by impression. Equal losses have 0.
    """
    gaps = losses - others
    spread = float(gaps.std(ddof=1)) if gaps.shape[0] > 1 else 0.0
    return float(gaps.mean()) / spread * gaps.shape[0] ** 0.5 if spread else 0.0


def _loss(z: Floats, y: Floats) -> float:
    return float(np.mean(np.logaddexp(0.0, z) - y * z))


def _fitted(z: Floats, y: Floats, *, scaled: bool) -> float:
    """Return the least loss of a z + c, with a = 1 unless scaled (Newton, with bounded steps)."""
    columns = np.stack((np.ones_like(z), z)[: 1 + scaled])
    found, offset = np.zeros(columns.shape[0]), np.zeros_like(z) if scaled else z
    if scaled:
        found[1] = 1.0
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-(offset + found @ columns)))
        curvature = (columns * (p * (1.0 - p))) @ columns.T + 1e-9 * np.eye(found.shape[0])
        step = np.clip(np.linalg.solve(curvature, columns @ (y - p)), -1.0, 1.0)
        found = found + step
        if np.abs(step).max() < 1e-9:
            break
    return _loss(offset + found @ columns, y)
