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
an impression loses its bet, a click wins one, and an impression clicked within a wait does both.
When impressions pause, the clicks of earlier ones still come. So clicks that were expected in the
last label window and did not come are credit: an excess must use it up first. Clicks on impressions
that came before these tests began have no such credit, and are not judged.

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

from headrace.ingest.examples.batch import Examples
from headrace.learner.loop.guard.bets import (
    BetLimits,
    Capital,
    Cohorts,
    bet_on_clicks,
    bet_on_numbers,
    bet_on_outcomes,
    bet_on_repeats,
    new_capital,
)
from headrace.learner.loop.marks.parked_marks import ParkedCause
from headrace.runtime.counted_nouns import counted
from headrace.runtime.kernels.numba_kernels import read_only

Floats = npt.NDArray[np.float64]

LABEL_TESTS = (
    ParkedCause.MORE_CLICKS,
    ParkedCause.FEWER_CLICKS,
    ParkedCause.LEVEL_SCORES,
    ParkedCause.INVERTED_LABELS,
)
_COHORTS = 17
"""Impressions are counted by when they were shown, in sixteenths of a label window."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Numbers that a model can learn, but that statistics find very unlikely."""

    reason: str
    cause: ParkedCause = ParkedCause.UNKNOWN


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
    inputs_warm_up: int = 1000
    """Examples before numbers and repeats are judged."""
    memory_examples: float = 20_000.0
    """Over which running means are taken, roughly."""


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


class StreamSurprise:
    """The tests of one stream, and what they remember of it."""

    def __init__(self, limits: SurpriseLimits, window_ms: int) -> None:
        """`window_ms`: the label window, in which a click may come."""
        self._limits, self._window_ms = limits, window_ms
        self._clicks, self._numbers = (new_capital(0, limits.evidence) for _ in range(2))
        self.forget()

    def forget(self) -> None:
        """Begin anew, as after a change that lasts."""
        memory = self._limits.memory_examples
        self.begin(self._limits)
        self._level, self._repeated = RunningMean(memory), RunningMean(memory)
        self._sizes = RunningMean(memory)
        self._weight, self._click_weight = RunningMean(memory), RunningMean(memory)
        self._last_row = 0
        self._count_clicks_from(0)

    def _count_clicks_from(self, shown_ms: int) -> None:
        width_ms = max(self._window_ms // (_COHORTS - 1), 1)
        self._cohorts = Cohorts(np.zeros(_COHORTS), 0, width_ms, shown_ms)

    # inputs

    def of_inputs(self, examples: Examples) -> Suspect | None:
        """Return what is suspect about the ids and numbers of a batch, or None."""
        if not len(examples):
            return None
        numbers = self._of_numbers(read_only(examples.features.numbers, np.float32))
        return self._of_repeats(read_only(examples.features.ids, np.uint64)) or numbers

    def _of_numbers(self, numbers: npt.NDArray[np.float32]) -> Suspect | None:
        limits, mean, capital = self._limits, self._sizes, self._numbers
        count, fields = numbers.shape
        if not fields:
            return None
        if capital.logs.shape[0] != fields:
            capital = self._numbers = new_capital(fields, limits.evidence)
        usual = mean.value if mean.weight else np.zeros(fields)
        sums = np.zeros(fields)
        judged = mean.weight >= limits.inputs_warm_up
        field = bet_on_numbers(capital, sums, numbers, usual, limits.numbers_beyond, judged)
        if field >= 0:
            return Suspect(
                f"expected plain number {field + 1} around {usual[field]:.4g}, its running mean, "
                f"got {sums[field] / count:.4g}",
                ParkedCause.NUMBERS,
            )
        mean.add(sums / count, count)
        return None

    def _of_repeats(self, ids: npt.NDArray[np.uint64]) -> Suspect | None:
        limits, mean = self._limits, self._repeated
        usual = max(float(mean.value[0]), limits.least_repeats)
        bound, said = (_times(usual, limits.repeats_tolerance**power) for power in (1, 2))
        last, judged = np.uint64(self._last_row), mean.weight >= limits.inputs_warm_up
        proved, repeats, self._last_row = bet_on_repeats(
            self._repeats, ids, last, bound, said, judged
        )
        share, count = repeats / ids.shape[0], ids.shape[0]
        if proved >= 0:
            return Suspect(
                f"expected up to {100 * bound:.3g} % of examples with the ids of the one "
                f"before, got {100 * share:.3g} % of {count}",
                ParkedCause.REPEATS,
            )
        mean.add(share, count)
        return None

    # labels

    def of_labels(
        self, examples: Examples, scores: Floats, *, judged: bool = True
    ) -> Suspect | None:
        """Return what is suspect about the labels of a batch, given its scores, or None.

        judged: whether the model is old enough.
        """
        if not len(examples):
            return None
        if examples.settled[0]:
            return self._of_outcomes(examples, scores, judged=judged)
        return self._of_clicks(examples, scores, judged=judged)

    def _of_outcomes(self, examples: Examples, scores: Floats, *, judged: bool) -> Suspect | None:
        shift, count = self._shift(examples), len(examples)
        level = float(self._level.value[0]) if self._level.weight else float(scores.mean())
        labels = read_only(examples.labels, np.uint8)
        proved, total, clicks, expected = bet_on_outcomes(
            self._labels, self._bets, scores, labels, shift, level, judged and shift > 0
        )
        if proved >= 0:
            return _suspect_labels(LABEL_TESTS[proved], expected, clicks, count)
        self._level.add(total / count, count)
        return None

    def _of_clicks(self, examples: Examples, scores: Floats, *, judged: bool) -> Suspect | None:
        shift, shown_ms = self._shift(examples), read_only(examples.shown_ms, np.int64)
        kinds = read_only(examples.kinds, np.uint8)
        proved, newest, clicks, expected = bet_on_clicks(
            self._clicks, self._bets, self._cohorts, scores, kinds, shown_ms, shift or 1.0
        )
        self._cohorts = self._cohorts._replace(newest=newest)
        if not (judged and shift):
            self._clicks = new_capital(1, self._limits.evidence)
            self._count_clicks_from(int(shown_ms.max()))
        elif proved >= 0:
            return _suspect_labels(LABEL_TESTS[0], expected, clicks, len(examples))
        return None

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
            if isinstance(value, Capital | RunningMean | Cohorts):
                setattr(other, name, copy.deepcopy(value))
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
        self._bets = BetLimits(
            *(limits.tolerance, limits.excess, limits.shortage, math.exp(limits.largest_gain))
        )
        proof = limits.evidence
        self._labels = new_capital(len(LABEL_TESTS), proof)
        self._clicks = new_capital(1, proof)
        self._repeats = new_capital(1, proof)
        self._numbers = new_capital(0, proof)  # one for each number, once they are known


def _times(share: float, factor: float) -> float:
    """Return the share whose odds are so many times those of another."""
    odds = factor * share / max(1.0 - share, 1e-6)
    return odds / (1.0 + odds)


def _suspect_labels(test: ParkedCause, expected: float, clicks: int, count: int) -> Suspect:
    return Suspect(
        f"expected {expected:.4g} clicks of {counted(count, 'example')} by the scores, got "
        f"{clicks}: the labels of this batch and of those before it look like {test}",
        test,
    )
