"""Weighs whether a fault explains a stream of examples better than good traffic does.

A calibrated model says what to expect: an example with the score p is clicked with probability p.
Good traffic departs from that: a young model is unsure, tastes drift, the clicks of one user go
together. So the claim under test is weak. Given all that came before, the odds of a click are
within a factor `tolerance` of p / (1 - p). Its opponents are forecasters that say what a fault
would do:

    more clicks        odds times `excess`: clicks that no impression deserves
    fewer clicks       odds through `shortage`: labels that are all 0
    level scores       the mean score for all: scores that a fault drove to 0 or 1
    inverted labels    1 - p for p

An opponent bets on each example against the bound b of the claim that is nearest to its forecast q.
The bet multiplies its capital by q / b after a click, and by (1 - q) / (1 - b) without. Under the
claim no bet is expected to gain, so the capital is an e-process: it ever reaches 1 / alpha with
probability alpha at most, whatever the number and the size of the batches (Ramdas et al.,
"Game-theoretic statistics and safe anytime-valid inference", 2023). The capital never falls below
1, so that good traffic of yesterday does not pay for a fault of today. Then alpha bounds the rate
of false alarms: the mean number of examples before one is 1 / alpha at least (the CUSUM e-detector
of Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection", 2024). The limit `evidence` is the logarithm of 1 / alpha. Batches of ten are judged
together, and one of 10,000 part by part.

One bet gains at most `largest_gain`: one outcome that the model held impossible is no proof. If k
examples copy one outcome, the k-th root of the capital is still an e-process (by Hoelder's
inequality), so `evidence` is several times what independent examples would need.

Under `immediate` the outcome of an impression comes later, if ever. Only `more clicks` is judged:
an impression loses its bet, a click wins one. When impressions pause, the clicks of earlier ones
still come. So clicks that were expected in the last label window and did not come are credit: an
excess must use it up first. Clicks on impressions that came before these tests began have no such
credit, and are not judged.

Two tests need no score, so they are made before a batch is learned:

    numbers    By Markov's inequality at most one in k absolute values is above k times their mean.
               That is claimed of each plain number and its running mean.
    repeats    How often an example has the ids of the one before. The claim is that the odds are
               within a factor `repeats_tolerance` of those of the running share.

*Refused:* a mean loss against a multiple of its running mean. The mean of n losses of rare clicks
has a heavy tail that depends on n and on the scores: at some hundred examples, good batches exceed
any useful multiple. *Refused:* a z-score of the loss against the loss that the scores expect. Once
a batch is large, it finds any miscalibration, however small.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.counted_nouns import counted
from headrace.ingest.examples.batch import Examples, Kind

Floats = npt.NDArray[np.float64]

LABEL_TESTS = ("more clicks", "fewer clicks", "level scores", "inverted labels")
_PART = 128
"""Examples after which the capital is looked at."""
_EXTREME = 1e-4
"""Scores count as at least this far from 0 and 1."""
_OWN = 1.0
"""Evidence that a batch must bring itself, or together with those just before it."""
_COHORTS = 17
"""Impressions are counted by when they were shown, in sixteenths of a label window."""
_CREDIT = 1.1
"""Clicks expected of a score, as credit: more than it says, since a young model says too little."""
_NOTHING = 1e-300
"""Capital that an opponent keeps of a part, so that its logarithm is finite."""
_MIX = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class SurpriseLimits:
    """The departures from the scores that are good traffic, and the proof of a suspicion."""

    evidence: float = 20.0
    """Logarithm of the capital that proves a case. Good streams of some million examples, which the
    benchmark `guard` learns, came up to 9."""
    tolerance: float = 2.0
    """Factor on the odds of a click, either way, by which good traffic may be off."""
    excess: float = 6.0
    """Factor of the forecaster of more clicks."""
    shortage: float = 50.0
    """Divisor of the forecaster of fewer clicks."""
    largest_gain: float = 2.0
    """The most that one example adds to the logarithm of the capital."""
    numbers_beyond: float = 50.0
    """Multiple of the running mean: the k of Markov's inequality."""
    repeats_tolerance: float = 4.0
    """Factor on the odds of a repeat by which good traffic may be off."""
    least_repeats: float = 0.05
    """Share of repeats that surprises no stream."""
    most_weighed: int = 2048
    """Examples weighed of a batch, evenly spaced: more cost time and tell little."""
    inputs_warm_up: int = 1000
    """Examples before numbers and repeats are judged."""
    memory_examples: float = 20_000.0
    """Over which running means are taken, roughly."""


class Capital:
    """The logarithms of the capital of k opponents."""

    def __init__(self, opponents: int) -> None:
        self.logs: Floats = np.zeros(opponents)

    def bet(self, gains: Floats, proof: float, credit: float = 0.0) -> int | None:
        """Take the outcomes of bets; return which opponent has proved its case, or None.

        gains: (parts, k) logarithms. One part may prove it: the rest of a batch may be good. After
        that this opponent stays close to the proof, so that it has it at once by the next bad
        batches, however small; the others begin anew. credit: how far below 0 a log may be.
        """
        for part in gains:
            self.logs = np.maximum(self.logs, -credit) + part
            if self.logs.max() >= proof:
                proved = int(self.logs.argmax())
                self.logs = np.zeros(self.logs.shape[0])
                self.logs[proved] = proof - _OWN
                return proved
        return None


class RunningMean:
    """A mean over the latest values, of shape (k,); of the first ones at first."""

    def __init__(self, memory: float) -> None:
        self._memory, self.weight = memory, 0.0
        self.value: Floats = np.zeros(1)

    def add(self, mean: Floats | float, weight: float) -> None:
        """Move towards the mean of values of this weight."""
        self.weight = min(self.weight + weight, self._memory)
        if weight:
            self.value = self.value + min(weight / self.weight, 1.0) * (mean - self.value)


class ClickCredit:
    """The clicks that were expected in the last label window and did not come yet."""

    def __init__(self, window_ms: int) -> None:
        self._width_ms = max(window_ms // (_COHORTS - 1), 1)
        self._newest = 0
        self._missing: Floats = np.zeros(_COHORTS)  # by when their impressions were shown

    def taken(self, shown_ms: npt.NDArray[np.int64], expected: Floats) -> float:
        """Return the credit, then count a batch: -1 for a click; both (n,)."""
        credit = float(np.maximum(self._missing, 0.0).sum())
        cohorts = shown_ms // self._width_ms
        newest = max(self._newest, int(cohorts.max()))
        kept = np.zeros(_COHORTS)
        if (moved := newest - self._newest) < _COHORTS:
            kept[moved:] = self._missing[: _COHORTS - moved]
        age = np.minimum(newest - cohorts, _COHORTS - 1)
        self._missing = kept + np.bincount(age, expected, _COHORTS)
        self._newest = newest
        return credit


def evenly(count: int, most: int) -> slice | npt.NDArray[np.int64]:
    """Return at most so many of `count` places, evenly spaced."""
    if count <= most:
        return slice(None)
    return np.linspace(0, count - 1, most).astype(np.int64)


def part_logs(factors: Floats) -> Floats:
    """Return the logarithms of the products over parts; factors (k, n), result (parts, k)."""
    begins = np.arange(0, factors.shape[1], _PART)
    found: Floats = np.log(np.maximum(np.multiply.reduceat(factors, begins, axis=1), _NOTHING))
    return found.T


def odds_of(scores: Floats) -> Floats:
    """Return p / (1 - p) of scores, within what double precision can tell."""
    within = np.clip(scores, _EXTREME, 1.0 - _EXTREME)
    found: Floats = within / (1.0 - within)
    return found


def factors_of_labels(
    limits: SurpriseLimits, odds: Floats, clicked: npt.NDArray[np.bool_], level: float
) -> Floats:
    """Return by what each bet of `LABEL_TESTS` multiplies the capital; (4, n).

    odds: (n,) of a click, by the scores. level: odds by the mean score.
    """
    said = np.empty((4, odds.shape[0]))
    said[0] = odds * limits.excess
    said[1] = odds / limits.shortage
    said[2] = level
    said[3] = 1.0 / odds
    bound = np.clip(said, odds / limits.tolerance, odds * limits.tolerance)
    found: Floats = (1.0 + bound) / (1.0 + said)
    found[:, clicked] *= (said / bound)[:, clicked]
    return np.minimum(found, math.exp(limits.largest_gain))


def factors_of_clicks(
    limits: SurpriseLimits, odds: Floats, clicked: npt.NDArray[np.bool_]
) -> Floats:
    """Return the same of `more clicks` under `immediate`, where a click comes alone; (1, n).

    odds: (n,), of clicks ignored.
    """
    found: Floats = (1.0 + limits.tolerance * odds) / (1.0 + limits.excess * odds)
    found[clicked] = limits.excess / limits.tolerance
    return found[np.newaxis, :]


def factors_of_shares(happened: npt.NDArray[np.bool_], bound: float, said: float) -> Floats:
    """Return the same of events that happen with a probability up to `bound`; of one shape."""
    return np.where(happened, said / bound, (1.0 - said) / (1.0 - bound))


class StreamSurprise:
    """The tests of one stream, and what they remember of it."""

    def __init__(self, limits: SurpriseLimits, window_ms: int) -> None:
        """`window_ms`: the label window, in which a click may come."""
        self._limits, self._window_ms = limits, window_ms
        self._labels, self._clicks = Capital(len(LABEL_TESTS)), Capital(1)
        self._repeats, self._numbers = Capital(1), Capital(0)
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after a change that lasts."""
        memory = self._limits.memory_examples
        self.begin(self._limits)
        self._level, self._repeated = RunningMean(memory), RunningMean(memory)
        self._sizes = RunningMean(memory)
        self._weight, self._click_weight = RunningMean(memory), RunningMean(memory)
        self._last_row = np.uint64(0)
        self._count_clicks_from(0)

    def _count_clicks_from(self, shown_ms: int) -> None:
        self._judged_from_ms, self._credit = shown_ms, ClickCredit(self._window_ms)

    # inputs

    def of_inputs(self, examples: Examples) -> str | None:
        """Return what is suspect about the ids and numbers of a batch, or None."""
        if not len(examples):
            return None
        places = evenly(len(examples), self._limits.most_weighed)
        features = examples.features
        numbers = self._of_numbers(np.abs(features.numbers[places]).astype(np.float64))
        return self._of_repeats(features.ids[places]) or numbers

    def _of_numbers(self, sizes: Floats) -> str | None:
        limits, mean = self._limits, self._sizes
        count, fields = sizes.shape
        if not fields:
            return None
        if self._numbers.logs.shape[0] != fields:
            self._numbers = Capital(fields)
        if mean.weight >= limits.inputs_warm_up:
            beyond = sizes > limits.numbers_beyond * mean.value
            factors = factors_of_shares(beyond.T, 1.0 / limits.numbers_beyond, 0.25)
            field = self._numbers.bet(part_logs(factors), limits.evidence)
            if field is not None:
                return (
                    f"expected plain number {field + 1} around {mean.value[field]:.4g}, its "
                    f"running mean, got {sizes[:, field].mean():.4g}"
                )
        mean.add(sizes.mean(axis=0), count)
        return None

    def _of_repeats(self, ids: npt.NDArray[np.uint64]) -> str | None:
        limits, mean = self._limits, self._repeated
        count, fields = ids.shape
        rows = (ids * (np.arange(1, 2 * fields, 2, dtype=np.uint64) * np.uint64(_MIX))).sum(axis=1)
        again = rows == np.concatenate(([self._last_row], rows[:-1]))
        self._last_row = rows[-1]
        if mean.weight >= limits.inputs_warm_up:
            usual = max(float(mean.value[0]), limits.least_repeats)
            bound, said = (_times(usual, limits.repeats_tolerance**power) for power in (1, 2))
            factors = factors_of_shares(again[np.newaxis, :], bound, said)
            if self._repeats.bet(part_logs(factors), limits.evidence) is not None:
                return (
                    f"expected up to {100 * bound:.3g} % of examples with the ids of the one "
                    f"before, got {100 * again.mean():.3g} % of {count}"
                )
        mean.add(float(again.mean()), count)
        return None

    # labels

    def of_labels(self, examples: Examples, scores: Floats, *, judged: bool = True) -> str | None:
        """Return what is suspect about the labels of a batch, given its scores, or None.

        judged: whether the model is old enough.
        """
        if not len(examples):
            return None
        if examples.kinds[0] == Kind.CLOSED:
            return self._of_outcomes(examples, scores, judged=judged)
        return self._of_clicks(examples, scores, judged=judged)

    def _of_outcomes(self, examples: Examples, scores: Floats, *, judged: bool) -> str | None:
        places = evenly(len(examples), self._limits.most_weighed)
        scores, clicked = scores[places], examples.labels[places] > 0
        level, count = float(scores.mean()), scores.shape[0]
        shift = self._shift(examples)
        if judged and shift:
            usual = float(self._level.value[0]) if self._level.weight else level
            odds = odds_of(scores) * shift
            factors = factors_of_labels(
                self._limits, odds, clicked, float(odds_of(np.array(usual)))
            )
            proved = self._labels.bet(part_logs(factors), self._limits.evidence)
            if proved is not None:
                return _labels_reason(LABEL_TESTS[proved], odds, int(clicked.sum()), count)
        self._level.add(level, count)
        return None

    def _of_clicks(self, examples: Examples, scores: Floats, *, judged: bool) -> str | None:
        limits, shown_ms = self._limits, examples.shown_ms
        clicked = examples.kinds == Kind.CLICKED
        shift = self._shift(examples)
        if not (judged and shift):
            self._count_clicks_from(int(shown_ms.max()))
            return None
        places = np.flatnonzero(~clicked | (shown_ms > self._judged_from_ms))
        clicked, shown_ms = clicked[places], shown_ms[places]
        if not places.shape[0]:
            return None
        odds = odds_of(np.where(clicked, 0.5, scores[places])) * shift
        expected = np.where(clicked, -1.0, _CREDIT * odds / (1.0 + odds))
        credit = math.log(limits.excess / limits.tolerance) * self._credit.taken(shown_ms, expected)
        factors = factors_of_clicks(limits, odds, clicked)
        if self._clicks.bet(part_logs(factors), limits.evidence, credit) is None:
            return None
        return _labels_reason(LABEL_TESTS[0], odds[~clicked], int(clicked.sum()), len(examples))

    def _shift(self, examples: Examples) -> float:
        """Return the factor from the odds of weighted examples to those of the ones that came.

        0: no click with a weight came yet, or nothing but clicks.
        """
        weights, clicked = examples.weights, examples.labels > 0
        if weights is None:
            return 1.0
        for mean, which in (self._weight, ~clicked), (self._click_weight, clicked):
            if which.any():
                mean.add(float(weights[which].mean()), int(which.sum()))
        if not (self._weight.weight and self._click_weight.weight):
            return 0.0
        return float(self._weight.value[0]) / max(float(self._click_weight.value[0]), 1e-9)

    def copied(self) -> StreamSurprise:
        """Return a copy that goes on by itself."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Capital | RunningMean | ClickCredit):  # all replace their arrays
                setattr(other, name, copy.copy(value))
        return other

    def again(self, share: float, earlier: StreamSurprise | None) -> StreamSurprise:
        """Return tests that expect the same as these, with the evidence of earlier ones.

        share: of the evidence that proves a case, is enough here. Without earlier ones no case has
        any evidence.
        """
        other = self.copied() if earlier is None else earlier.copied()
        if earlier is None:
            other.begin(replace(self._limits, evidence=share * self._limits.evidence))
        return other

    def begin(self, limits: SurpriseLimits) -> None:
        """Drop all evidence, and judge by these limits."""
        self._limits = limits
        self._labels, self._clicks = Capital(len(LABEL_TESTS)), Capital(1)
        self._repeats = Capital(1)
        self._numbers = Capital(0)  # one for each plain number, once they are known


def _times(share: float, factor: float) -> float:
    """Return the share whose odds are so many times those of another."""
    odds = factor * share / max(1.0 - share, 1e-6)
    return odds / (1.0 + odds)


def _labels_reason(test: str, odds: Floats, clicks: int, count: int) -> str:
    expected = float((odds / (1.0 + odds)).sum())
    return (
        f"expected {expected:.4g} clicks of {counted(count, 'example')} by the scores, got "
        f"{clicks}: the labels of this batch and of those before it look like {test}"
    )
