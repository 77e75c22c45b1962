"""Expected number of distinct rows in a number of examples.

A push names each changed row once, so the number of distinct rows decides what logs carry. The
values of a field are taken to have a bounded Pareto law: rank r of V values has a probability
proportional to r**-skew. The fields have 10 values at least; their numbers of values grow
geometrically and add up to the model's rows. The synthetic stream of the benchmarks is drawn the
same way.

The expected number of distinct values in n draws is the sum of 1 - exp(-n * p) over all values.
Ranks are summed one by one up to 64, and in steps of 10 % beyond that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_LEAST_VALUES = 10.0
_SINGLE_RANKS = 64
_STEP = 1.1


@lru_cache(maxsize=64)
def values_of_fields(rows: float, fields: int) -> tuple[float, ...]:
    """Return the number of values of each field, ascending; they add up to `rows`."""
    if fields == 1 or rows <= _LEAST_VALUES * fields:
        return (rows / fields,) * fields
    places = np.linspace(0.0, 1.0, fields)
    low, high = 0.0, math.log(rows / _LEAST_VALUES)
    for _ in range(60):
        middle = (low + high) / 2
        if _LEAST_VALUES * np.exp(middle * places).sum() < rows:
            low = middle
        else:
            high = middle
    return tuple((_LEAST_VALUES * np.exp(high * places)).tolist())


class ValueDistribution:
    """The probability of each row of a model in an example."""

    def __init__(self, rows: float, fields: int, skew: float) -> None:
        pieces = [_pieces(max(1.0, values), skew) for values in values_of_fields(rows, fields)]
        self._counts = np.concatenate([counts for counts, _ in pieces])
        self._chances = np.concatenate([chances for _, chances in pieces])

    def distinct(self, examples: float) -> float:
        """Return the expected number of distinct rows in so many examples."""
        return float((self._counts * -np.expm1(-examples * self._chances)).sum())

    def rows_for(self, share: float) -> float:
        """Return the number of the most frequent rows that make up a share of all lookups."""
        order = np.argsort(-self._chances)
        counts, chances = self._counts[order], self._chances[order]
        reached = np.cumsum(counts * chances)
        last = min(int(np.searchsorted(reached, share * reached[-1])), len(counts) - 1)
        return float(counts[: last + 1].sum())


def _pieces(values: float, skew: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return numbers of values and the probability of each value, for ranks 1 to `values`."""
    edges = np.arange(1.0, min(values, _SINGLE_RANKS) + 1.0)
    if values > _SINGLE_RANKS:
        steps = math.ceil(math.log(values / _SINGLE_RANKS, _STEP))
        edges = np.concatenate((edges, np.geomspace(_SINGLE_RANKS, values, steps + 1)[1:]))
    if edges[-1] < values + 1.0:
        edges = np.append(edges, values + 1.0)
    power = 1.0 - skew
    reached = np.log(edges) if abs(power) < 1e-9 else (edges**power - 1.0) / power
    counts = np.diff(edges)
    return counts, np.diff(reached) / reached[-1] / counts
