"""Ranks the arms of an experiment at its rungs, and stops those that are not among the best there.

A rung is a number of examples. This is successive halving without an end: ASHA in the form that
stops arms (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020): an arm
that arrives at a rung is ranked among all that ever arrived there, and goes on if its rank is
within 1 / factor of them. Arms that arrive together are ranked together, so their order does not
matter. An arm ranks by its mean paired difference to the control over all of its examples, so the
level of the loss cancels.

A rank alone decides by chance between arms that are equally good. So an arm also goes on if it is
worse than the last arm within the rank by no more than one standard error of their difference. The
two are compared over the same examples, piece by piece (`losses.LossPieces`). A later rung tells
them apart. *Refused:* ranks over the examples since the rung before, which forgive a slow first
step. They are fewer, and decided worse, with and without the standard error.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
PieceSums = tuple[Reals, Reals]

_ERRORS = 1.0
"""Standard errors by which an arm may be worse than the last one within the rank."""


class ComparedArm(NamedTuple):
    """The paired differences of an arm to the control."""

    differences: Reals
    """(n,) summed loss minus that of the control in each piece."""
    weights: Reals
    """(n,) of the examples in each piece; the same for all arms."""

    @property
    def mean(self) -> float:
        """Mean paired difference; infinite if it is NaN, or without examples."""
        weight = self.weights.sum()
        mean = float(self.differences.sum() / weight) if weight else float("nan")
        return float("inf") if mean != mean else mean


def compared_arm(arm: PieceSums, control: PieceSums) -> ComparedArm:
    """Return an arm from its losses and weights by piece, and those of the control."""
    (losses, weights), (control_losses, _) = arm, control
    if losses.shape != control_losses.shape:
        # a live log in which an idle partition came late: read again, it has another order
        return ComparedArm(
            np.array([losses.sum() - control_losses.sum()]), np.array([weights.sum()])
        )
    return ComparedArm(losses - control_losses, weights)


class Placement(NamedTuple):
    """An arm at a rung."""

    kept: bool
    rank: int
    """From 1, the best."""
    of: int
    """Arms that have arrived there."""
    close: bool = False
    """Whether it goes on beyond the rank, since the difference is within its standard error."""


class Rungs:
    """All arms at all rungs. It can be pickled."""

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._rungs: list[list[tuple[float, ComparedArm]]] = []

    def arrive(self, rung: int, arms: dict[int, ComparedArm]) -> dict[int, Placement]:
        """Rank arms that arrive at a rung together; less is better."""
        while len(self._rungs) <= rung:
            self._rungs.append([])
        here = self._rungs[rung]
        here += [(each.mean, each) for each in arms.values()]
        means = [mean for mean, _ in here]
        going_on = max(1, len(here) // self._factor)
        _, last = sorted(here, key=lambda other: other[0])[going_on - 1]
        found = {}
        for arm, each in arms.items():
            rank = 1 + sum(mean < each.mean for mean in means)
            close = rank > going_on and within_error(each, last)
            found[arm] = Placement(rank <= going_on or close, rank, len(here), close)
        return found


def within_error(arm: ComparedArm, other: ComparedArm) -> bool:
    """Return whether an arm is worse than another by one standard error at most, or not worse."""
    pieces, weight = arm.weights.shape[0], arm.weights.sum()
    if pieces < 2 or other.weights.shape[0] != pieces or not weight:
        return False
    differences = arm.differences - other.differences
    worse = differences.sum()
    spread = np.square(differences - worse / weight * arm.weights).sum() * pieces / (pieces - 1)
    return bool(worse <= _ERRORS * np.sqrt(spread))  # False for NaN
