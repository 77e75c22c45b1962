"""Decisions about an arm, from its paired differences to the control by batches of event time.

The difference of a batch is the summed loss of the arm minus that of the control over the same
examples. An experiment looks at every batch that closes:

- *eliminated*: after `least_batches` / 2 batches or more, a sequence at `alpha` that is narrowest
  that early is above 0, or above `-least_gain` (the arm cannot gain enough to be worth a change).
  It waits for no cycle: a hopeless arm costs time, and a false elimination costs little.
- *better*: the sequence is below 0 at the end of a whole cycle, after `least_batches` or more.
  Between cycles, an arm that is better by day and worse by night would look better. A verdict
  promotes nothing: in a promotion, `serving.promotion.promotion_checks` judge served answers.

For promotions, the error probability is divided by the arms of the experiment (Bonferroni). So a
control that no arm improves on is replaced with probability `alpha` at most, over all arms and all
looks.
"""

from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.experiments.confidence import half_width, mixture_precision

Reals = npt.NDArray[np.float64]


class ArmVerdict(StrEnum):
    """The result of one look at an arm."""

    UNDECIDED = "undecided"
    ELIMINATED = "eliminated"
    BETTER = "better"


class DecisionRules(NamedTuple):
    """The rules of an experiment."""

    alpha: float
    """Probability of a false promotion in the whole experiment."""
    arms: int
    """Most arms that the experiment begins; `alpha` is divided by it."""
    batch_ms: int
    """Event time of a batch."""
    cycle_ms: int
    """Event time after which the stream repeats itself, a whole multiple of `batch_ms`."""
    least_batches: int = 10
    """Fewest batches of a promotion; half of it eliminate."""
    least_gain: float = 0.0
    """Smallest gain of the metric that is worth a change, an absolute difference of loss."""

    @property
    def arm_alpha(self) -> float:
        """Error probability of one arm."""
        return self.alpha / self.arms

    @property
    def cycle_batches(self) -> int:
        """Batches of a cycle."""
        return self.cycle_ms // self.batch_ms

    @property
    def early_batches(self) -> int:
        """Fewest batches of an elimination."""
        return (self.least_batches + 1) // 2

    @property
    def early_precision(self) -> float:
        """Parameter r of the sequence that eliminates."""
        return mixture_precision(self.alpha, self.early_batches)

    @property
    def precision(self) -> float:
        """Parameter r of the sequence: narrowest after two cycles, or twice the fewest batches."""
        return mixture_precision(self.arm_alpha, 2.0 * max(self.cycle_batches, self.least_batches))


class Look(NamedTuple):
    """An arm at the end of a batch."""

    verdict: ArmVerdict
    difference: float
    """Mean loss of the arm minus that of the control; NaN without examples."""
    low: float
    high: float
    """Bounds of the confidence sequence."""
    batches: int
    """With examples."""
    reason: str


def look(sums: Reals, weights: Reals, elapsed: int, rules: DecisionRules) -> Look:
    """Return the verdict on an arm.

    sums: (n,) loss of the arm minus that of the control in each closed batch. weights: (n,) of its
    examples, 0 for a batch without any. `elapsed`: batches of event time since the arm's first one,
    empty ones too.
    """
    weighted = weights > 0
    batches = int(weighted.sum())
    if not batches:
        return Look(ArmVerdict.UNDECIDED, float("nan"), -np.inf, np.inf, 0, "no examples yet")
    # of totals, not of means: each example counts the same, by day and by night
    values = sums[weighted] * (batches / weights[weighted].sum())
    mean = float(values.mean())
    deviation = float(values.std(ddof=1)) if batches > 1 else 0.0
    count, spread = np.array(batches, np.float64), np.array(deviation)
    width = float(half_width(count, spread, rules.arm_alpha, rules.precision))
    early = float(half_width(count, spread, rules.alpha, rules.early_precision))
    found = Look(ArmVerdict.UNDECIDED, mean, mean - width, mean + width, batches, "")
    verdict, reason = _verdict(found, mean - early, elapsed, rules)
    return found._replace(verdict=verdict, reason=reason)


def _verdict(
    found: Look, least: float, elapsed: int, rules: DecisionRules
) -> tuple[ArmVerdict, str]:
    """Return verdict and reason; `least` is the lower bound of the sequence that eliminates."""
    batches, high = found.batches, found.high
    if batches >= rules.early_batches and least > -rules.least_gain:
        worse = "worse than the control" if least > 0 else f"no gain of {rules.least_gain:g}"
        return ArmVerdict.ELIMINATED, f"{worse}: confidence sequence above {least:+.5f}"
    if high >= 0:
        return ArmVerdict.UNDECIDED, f"confidence sequence from {found.low:+.5f} to {high:+.5f}"
    if batches < rules.least_batches:
        return ArmVerdict.UNDECIDED, f"better, after {batches} of {rules.least_batches} batches"
    if elapsed % rules.cycle_batches:
        return ArmVerdict.UNDECIDED, "better, waiting for the end of a whole cycle"
    return ArmVerdict.BETTER, f"better than the control: confidence sequence below {high:+.5f}"
