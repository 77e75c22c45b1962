"""Compares the models of one alias on what each of them served.

An alias that splits its traffic (`models.traffic_split`) has one evaluation for each model, and
each publishes the loss of every minute that its model served under the alias. `compare_arms` sums
these minutes by batch of event time. In a batch, models answered different requests, drawn by the
same hash, so the difference of their mean losses is that of the models. The level of the loss,
which swings by day and night, is common to both and cancels.

A batch counts with the weight n m / (n + m), for n and m impressions of the two: the inverse of the
variance of its difference. So the batches of a canary at 1 % and at 50 % add up as they should.
The verdict over all batches is that of experiments (`learner.experiments`): a confidence sequence,
which holds at all looks together.

The topic of evaluation is compacted by window, so it keeps the newest minutes and drops older ones.
A minute that is missing for one model is left out for both: they are compared on the same minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.learner.experiments.decisions import ArmVerdict, DecisionRules, Look, look
from headrace.serving.evaluation.windows import SETTLED, WindowMetrics

MINUTE_MS = 60_000
UNDECIDED = "undecided"
_VERDICTS = {
    ArmVerdict.BETTER: "better",
    ArmVerdict.ELIMINATED: "worse",
    ArmVerdict.UNDECIDED: UNDECIDED,
}
"""A comparison ends nothing and promotes nothing, so its verdicts are not those of experiments."""


class ServedSums(NamedTuple):
    """Sums over the impressions with an outcome that one model served."""

    impressions: int = 0
    loss: float = 0.0
    clicks: int = 0
    expected: float = 0.0
    """Sum of the scores."""

    def plus(self, other: ServedSums) -> ServedSums:
        """Return the sums of both."""
        return ServedSums(
            self.impressions + other.impressions,
            self.loss + other.loss,
            self.clicks + other.clicks,
            self.expected + other.expected,
        )


class ServedArm(msgspec.Struct, frozen=True):
    """A model of the alias, beside the control. None: undefined without impressions or clicks."""

    model: str
    impressions: int
    """With an outcome, in closed batches."""
    log_loss: float | None
    calibration: float | None
    """Expected clicks per click."""
    batches: int
    """In which both models served."""
    difference: float | None
    """Mean loss of the model minus that of the control."""
    low: float | None
    high: float | None
    """Bounds of the confidence sequence. None: not yet bounded."""
    verdict: str
    """control, better or worse (than the control), or undecided."""
    reason: str


def compare_arms(
    figures: Iterable[WindowMetrics],
    alias: str,
    control: str,
    alpha: float,
    batch_ms: int,
    cycle_ms: int,
    minute_ms: int = MINUTE_MS,
) -> list[ServedArm]:
    """Return the control, then the other models of the alias by name.

    figures: in the order of their publication. Only settled minutes of the alias count, and a
    minute that comes again replaces the earlier one. alpha: for all models together. minute_ms:
    length of the shortest windows of evaluation.
    """
    minutes: dict[str, dict[int, ServedSums]] = {control: {}}
    for each in figures:
        whole = each.until == SETTLED and each.slice == "all"
        if each.alias == alias and whole and each.end_ms - each.begin_ms == minute_ms:
            minutes.setdefault(each.model, {})[each.begin_ms] = _sums(each)
    theirs = minutes.pop(control)
    rules = DecisionRules(alpha, max(len(minutes), 1), batch_ms, cycle_ms)
    arms = [_arm(model, minutes[model], theirs, rules, minute_ms) for model in sorted(minutes)]
    return [_described(control, _total(theirs.values()), "control", ""), *arms]


def _arm(
    model: str,
    mine: dict[int, ServedSums],
    theirs: dict[int, ServedSums],
    rules: DecisionRules,
    minute_ms: int,
) -> ServedArm:
    """Compare the minutes of a model, by begin, with those of the control."""
    common = mine.keys() & theirs.keys()
    if not common:
        return _described(model, _total(mine.values()), UNDECIDED, "no minute in common yet")
    size_ms = rules.batch_ms
    first, end = min(common) // size_ms, (max(common) + minute_ms) // size_ms
    arm, control = ([ServedSums()] * max(end - first, 0) for _ in range(2))
    for begin_ms in common:
        batch = begin_ms // size_ms - first
        if batch < len(arm):  # the newest batch is not closed
            arm[batch] = arm[batch].plus(mine[begin_ms])
            control[batch] = control[batch].plus(theirs[begin_ms])
    found = _look(arm, control, rules)
    described = _described(model, _total(arm), _VERDICTS[found.verdict], found.reason)
    return msgspec.structs.replace(
        described,
        batches=found.batches,
        difference=_known(found.difference),
        low=_known(found.low),
        high=_known(found.high),
    )


def _look(arm: list[ServedSums], control: list[ServedSums], rules: DecisionRules) -> Look:
    counts = np.array([each.impressions for each in arm], np.float64)
    others = np.array([each.impressions for each in control], np.float64)
    weights = counts * others / np.maximum(counts + others, 1.0)
    mine = np.array([each.loss for each in arm]) / np.maximum(counts, 1.0)
    theirs = np.array([each.loss for each in control]) / np.maximum(others, 1.0)
    return look((mine - theirs) * weights, weights, len(arm), rules)


def _sums(each: WindowMetrics) -> ServedSums:
    scored = each.scored
    if not scored or each.log_loss is None or each.ctr_predicted is None:
        return ServedSums()
    return ServedSums(scored, each.log_loss * scored, each.clicks, each.ctr_predicted * scored)


def _total(sums: Iterable[ServedSums]) -> ServedSums:
    total = ServedSums()
    for each in sums:
        total = total.plus(each)
    return total


def _described(model: str, sums: ServedSums, verdict: str, reason: str) -> ServedArm:
    loss = sums.loss / sums.impressions if sums.impressions else None
    calibration = sums.expected / sums.clicks if sums.clicks else None
    return ServedArm(
        *(model, sums.impressions, loss, calibration, 0, None, None, None, verdict, reason)
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
