"""Successive halving without an end: at each rung, an arm goes on if it is among the best there.

This is ASHA in the form that stops arms (Li et al., "A System for Massively Parallel Hyperparameter
Tuning", MLSys 2020): an arm that arrives at a rung is ranked among all that ever arrived there, and
goes on if its rank is within 1 / factor of them. Arms that arrive together are ranked together, so
their order does not matter. An arm ranks by its mean paired difference to the control over the
examples since the rung before: the level of the loss cancels, and so does a slow first step.
"""

from __future__ import annotations

from typing import NamedTuple


class Standing(NamedTuple):
    """An arm at a rung."""

    kept: bool
    rank: int
    """From 1, the best."""
    of: int
    """Arms that have arrived there."""


class Race:
    """The values of all arms at all rungs. It can be pickled."""

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._values: list[list[float]] = []

    def arrive(self, rung: int, values: dict[int, float]) -> dict[int, Standing]:
        """Rank arms that arrive at a rung together; less is better. NaN is worst."""
        while len(self._values) <= rung:
            self._values.append([])
        here = self._values[rung]
        here += [float("inf") if value != value else value for value in values.values()]
        going_on = max(1, len(here) // self._factor)
        found = {}
        for arm, value in values.items():
            comparable = float("inf") if value != value else value
            rank = 1 + sum(other < comparable for other in here)
            found[arm] = Standing(rank <= going_on, rank, len(here))
        return found
