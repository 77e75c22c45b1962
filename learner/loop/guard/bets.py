"""The bets of `surprise`, example by example, as kernels.

Each kernel multiplies the capital of its opponents over parts of `PART` examples, then looks at it.
It returns first the opponent that has proved its case, or -1. One part may prove it: the rest of a
batch may be good. After that, this opponent stays close to the proof, so that a next bad batch,
however small, completes it at once. The others begin anew.

Kernels are called for every batch, also for one that is not judged: so they are compiled before the
first batch that matters.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Kind
from headrace.runtime.kernels.numba_kernels import inlined, kernel

PART = 128
"""Examples after which the capital is looked at."""
_EXTREME = 1e-4
"""Scores count as at least this far from 0 and 1."""
_OWN = 1.0
"""Evidence that a batch must bring itself, or together with those just before it."""
_CREDIT = 1.1
"""Clicks expected of a score, as credit: more than it says, since a young model says too little."""
_OFTEN = 0.25
"""Share of values beyond the bound of which the opponents of numbers speak."""
_NOTHING = 1e-300
"""Capital that an opponent keeps of a part, so that its logarithm is finite."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHOWN, _CLICKED = np.uint8(Kind.SHOWN), np.uint8(Kind.CLICKED)
_ONE, _TWO = np.uint64(1), np.uint64(2)


class Capital(NamedTuple):
    """The capital of k opponents of one claim. The arrays change in place."""

    logs: npt.NDArray[np.float64]  # (k,)
    products: npt.NDArray[np.float64]  # (k,) of the present part
    proof: float
    """Logarithm of the capital that proves a case."""


def new_capital(opponents: int, proof: float) -> Capital:
    """Return the capital at the beginning: 1 each."""
    return Capital(np.zeros(opponents), np.ones(opponents), proof)


class Cohorts(NamedTuple):
    """The clicks expected in the last label window that did not come, under `immediate`."""

    missing: npt.NDArray[np.float64]  # (c,) by when impressions were shown, the newest first
    newest: int
    """Number of the first cohort; the number is the time over the width."""
    width_ms: int
    from_ms: int
    """Clicks on impressions shown up to then are left out."""


class BetLimits(NamedTuple):
    """The part of `SurpriseLimits` that kernels need."""

    tolerance: float
    excess: float
    shortage: float
    most: float
    """The most by which one example multiplies the capital."""


@inlined
def _settle(capital, floor):  # type: ignore[no-untyped-def]
    logs, products, proved = capital.logs, capital.products, -1
    for k in range(logs.shape[0]):
        logs[k] = max(logs[k], floor) + math.log(max(products[k], _NOTHING))
        products[k] = 1.0
        if logs[k] >= capital.proof and (proved < 0 or logs[k] > logs[proved]):
            proved = k
    if proved >= 0:
        for k in range(logs.shape[0]):
            logs[k] = capital.proof - _OWN if k == proved else 0.0
    return proved


@inlined
def _factor(said, odds, clicked, limits):  # type: ignore[no-untyped-def]
    bound = min(max(said, odds / limits.tolerance), odds * limits.tolerance)
    factor = (1.0 + bound) / (1.0 + said)
    if clicked:
        factor *= said / bound
    return min(factor, limits.most)


@inlined
def _odds(score):  # type: ignore[no-untyped-def]
    within = min(max(score, _EXTREME), 1.0 - _EXTREME)
    return within / (1.0 - within)


@kernel
def bet_on_outcomes(capital, limits, scores, labels, shift, level, judged):  # type: ignore[no-untyped-def]
    """Bet on impressions whose outcomes are known; opponents are those of `LABEL_TESTS`.

    scores (n,) float64, labels (n,) uint8. shift: factor on the odds. level: the usual
    mean score. Returns (proved, sum of scores, clicks, clicks expected).
    """
    proved, total, clicks, expected = -1, 0.0, 0, 0.0
    products, count, level_odds = capital.products, scores.shape[0], _odds(level)
    for i in range(count):
        odds, clicked = _odds(scores[i]) * shift, labels[i] > 0
        total += scores[i]
        clicks += clicked
        expected += odds / (1.0 + odds)
        if judged and proved < 0:
            products[0] *= _factor(odds * limits.excess, odds, clicked, limits)
            products[1] *= _factor(odds / limits.shortage, odds, clicked, limits)
            products[2] *= _factor(level_odds, odds, clicked, limits)
            products[3] *= _factor(1.0 / odds, odds, clicked, limits)
            if (i + 1) % PART == 0 or i + 1 == count:
                proved = _settle(capital, 0.0)
    return proved, total, clicks, expected


@inlined
def _floor(missing, limits):  # type: ignore[no-untyped-def]
    """Return how far the capital may fall: by what the clicks that are still to come will win."""
    credit = 0.0
    for c in range(missing.shape[0]):
        credit += max(missing[c], 0.0)
    return -credit * math.log(limits.excess / limits.tolerance)


@kernel
def bet_on_clicks(capital, limits, cohorts, scores, kinds, shown_ms, shift):  # type: ignore[no-untyped-def]
    """Bet on impressions and clicks that come alone, under `immediate`; there is one opponent.

    scores (n,) float64, of clicks ignored; kinds (n,) uint8; shown_ms (n,) int64. Returns (proved,
    the newest cohort, clicks, clicks expected); `cohorts.missing` changes in place.
    """
    missing, newest, oldest = cohorts.missing, cohorts.newest, cohorts.missing.shape[0] - 1
    proved, clicks, expected, weighed = -1, 0, 0.0, 0
    floor, products = _floor(missing, limits), capital.products
    for i in range(scores.shape[0]):
        alone = kinds[i] == _CLICKED  # else an impression, which has its click if a wait found it
        if alone and shown_ms[i] <= cohorts.from_ms:
            continue
        cohort = shown_ms[i] // cohorts.width_ms
        if cohort > newest:
            moved = min(cohort - newest, oldest + 1)
            for c in range(oldest, -1, -1):
                missing[c] = missing[c - moved] if c >= moved else 0.0
            newest = cohort
        age = min(newest - cohort, oldest)
        factor = 1.0
        if not alone:
            odds = _odds(scores[i]) * shift
            expected += odds / (1.0 + odds)
            missing[age] += _CREDIT * odds / (1.0 + odds)
            factor = (1.0 + limits.tolerance * odds) / (1.0 + limits.excess * odds)
        if kinds[i] != _SHOWN:
            clicks += 1
            missing[age] -= 1.0
            factor *= limits.excess / limits.tolerance
        if proved < 0:
            products[0] *= factor
            weighed += 1
            if weighed % PART == 0:
                proved = _settle(capital, floor)
                floor = _floor(missing, limits)  # clicks of the next part use it up
    if proved < 0 and weighed % PART:
        proved = _settle(capital, floor)
    return proved, newest, clicks, expected


@kernel
def bet_on_numbers(capital, sums, numbers, means, beyond, judged):  # type: ignore[no-untyped-def]
    """Bet that absolute values are above `beyond` times their means; one opponent a field.

    numbers (n, k) float32; means (k,); sums (k,) receives the sums of absolute values.
    """
    products, proved, count, bound = capital.products, -1, numbers.shape[0], 1.0 / beyond
    for k in range(sums.shape[0]):
        sums[k] = 0.0
    for i in range(count):
        for k in range(sums.shape[0]):
            size = abs(np.float64(numbers[i, k]))
            sums[k] += size
            if judged and proved < 0:
                above = size > beyond * means[k]
                products[k] *= _OFTEN / bound if above else (1.0 - _OFTEN) / (1.0 - bound)
        if judged and proved < 0 and ((i + 1) % PART == 0 or i + 1 == count):
            proved = _settle(capital, 0.0)
    return proved


@kernel
def bet_on_repeats(capital, ids, last_row, bound, said, judged):  # type: ignore[no-untyped-def]
    """Bet that examples have the ids of the one before; there is one opponent.

    ids (n, fields) uint64. last_row: what stands for the ids of the example before the first.
    bound: the largest share of repeats that is good; said: the share of the opponent. Returns
    (proved, repeats, what stands for the ids of the last example).
    """
    products, proved, repeats, count = capital.products, -1, 0, ids.shape[0]
    for i in range(count):
        row, odd = np.uint64(0), _ONE
        for k in range(ids.shape[1]):
            row += ids[i, k] * (odd * _MIX)
            odd += _TWO
        again = row == last_row
        last_row = row
        repeats += again
        if judged and proved < 0:
            products[0] *= said / bound if again else (1.0 - said) / (1.0 - bound)
            if (i + 1) % PART == 0 or i + 1 == count:
                proved = _settle(capital, 0.0)
    return proved, repeats, last_row
