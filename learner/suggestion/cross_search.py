"""Finds pairs of columns whose combination predicts clicks better than the two alone.

The first half of the sample teaches an additive model of log-odds: a base rate and a weight for
each value, shrunk towards zero. For a pair, the remaining error of each combination is fitted in
one Newton step. The second half says whether that lowers the log loss beyond chance.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.suggestion.column_profile import ColumnProfile
from headrace.learner.suggestion.digit_ids import early_rates

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_LEAST_CLICKS = 200
_MOST_COLUMNS = 12
_ROWS_A_COMBINATION = 5.0
_LEAST_MORE_COMBINATIONS = 1.05
"""Combinations for each value of the larger column. With fewer, nearly every value of one column
has one value of the other, so the cross is that column again."""
_PRIOR_SHOWS = 20.0
_PRIOR_VARIANCE = 2.0
_LEAST_Z = 4.0
"""Standard errors of a gain: with 66 pairs, chance reaches it once in some 500 searches."""
_MOST_CROSSES = 3


class FoundCross(NamedTuple):
    """A pair worth a cross."""

    first: str
    second: str
    gain: float
    """Share of the log loss that the pair removes on later impressions."""


def find_crosses(
    columns: Sequence[ColumnProfile], labels: npt.NDArray[np.bool_]
) -> list[FoundCross]:
    """Return the pairs worth a cross, best first.

    Empty if either half of the sample has too few impressions with or without a click.
    """
    half = labels.shape[0] // 2
    clicks = (int(labels[:half].sum()), int(labels[half:].sum()))
    if min(*clicks, half - clicks[0], labels.shape[0] - half - clicks[1]) < _LEAST_CLICKS:
        return []
    usable = [each for each in columns if each.codes is not None and each.distinct >= 2]
    usable = sorted(usable, key=lambda each: each.distinct)[:_MOST_COLUMNS]
    rate = float(labels[:half].mean())
    base = float(np.log(rate / (1 - rate)))
    weights = {each.source: _weights(each, labels, rate) for each in usable}
    found = []
    for one, other in combinations(usable, 2):
        pair = _pair(one, other)
        if pair is None:
            continue
        logits = base + weights[one.source] + weights[other.source]
        gain, z = _gain(pair, logits, labels, half)
        if z > _LEAST_Z:
            found.append(FoundCross(one.source, other.source, gain))
    return sorted(found, key=lambda each: -each.gain)[:_MOST_CROSSES]


def _weights(column: ColumnProfile, labels: npt.NDArray[np.bool_], rate: float) -> Floats:
    """Return the weight of each row's value, from the first half; shape (rows,)."""
    assert column.codes is not None
    share = early_rates(column.codes, labels, _PRIOR_SHOWS)
    weights: Floats = np.log(share / (1 - share)) - np.log(rate / (1 - rate))
    return weights


def _pair(one: ColumnProfile, other: ColumnProfile) -> Codes | None:
    """Return a number for each row's combination; None if they are too many, or nothing new."""
    assert one.codes is not None
    assert other.codes is not None
    mixed = one.codes.astype(np.int64) * (int(other.codes.max()) + 1) + other.codes
    values, codes = np.unique(mixed, return_inverse=True)
    if mixed.shape[0] < _ROWS_A_COMBINATION * values.shape[0]:
        return None
    larger = max(np.unique(codes).shape[0] for codes in (one.codes, other.codes))
    if values.shape[0] < _LEAST_MORE_COMBINATIONS * larger:
        return None
    found: Codes = codes.astype(np.int64)
    return found


def _gain(
    pair: Codes, logits: Floats, labels: npt.NDArray[np.bool_], half: int
) -> tuple[float, float]:
    """Return the share of the log loss that the pair removes, and its standard errors."""
    size = int(pair.max()) + 1
    before = 1 / (1 + np.exp(-logits))
    error = np.bincount(pair[:half], weights=labels[:half] - before[:half], minlength=size)
    variance = np.bincount(pair[:half], weights=before[:half] * (1 - before[:half]), minlength=size)
    after = 1 / (1 + np.exp(-(logits + (error / (variance + _PRIOR_VARIANCE))[pair])))
    clicked = labels[half:]
    losses = [-np.log(np.where(clicked, each[half:], 1 - each[half:])) for each in (before, after)]
    saved = losses[0] - losses[1]
    deviation = float(saved.std()) / np.sqrt(saved.shape[0])
    return float(saved.mean() / losses[0].mean()), float(saved.mean() / max(deviation, 1e-12))
