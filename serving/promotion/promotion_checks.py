"""Compares the figures of a moment with the rules of a promotion.

Each check has one of three results. *Violated* ends the promotion at once. *Holds* is needed to go
on. *Unknown* does neither: the promotion waits.

- *loss*: violated if the confidence sequence of the difference to the control is above `worse_by`,
  holds if it is below. It covers the difference at all looks together, so a look every second does
  not add errors.
- *calibration*: violated if expected clicks per click are outside the bounds by four standard
  errors of the clicks. A canary has few clicks at first.
- *level*: the mean score divided by the control's. It needs no clicks.
- *p99*, *freshness*, *quarantined*: bounds.
"""

import math
from enum import StrEnum
from typing import NamedTuple

from headrace.learner.experiments.promotion_rules import (
    LARGEST_FRESHNESS_S,
    LARGEST_P99_MS,
    PromotionRules,
)
from headrace.runtime.counted_nouns import counted

_STANDARD_ERRORS = 4.0
"""Once in 16,000 looks for independent clicks."""


class PromotionResult(StrEnum):
    """The result of a check."""

    HOLDS = "holds"
    UNKNOWN = "unknown"
    VIOLATED = "violated"


class ServedFigures(NamedTuple):
    """The figures of the model at one moment. None: unknown."""

    loss_low: float | None = None
    loss_high: float | None = None
    """Bounds of the model's mean loss minus the control's."""
    clicks: int = 0
    expected_clicks: float = 0.0
    """Sum of the scores of the impressions that it served, with an outcome."""
    level: float | None = None
    """Mean score, divided by the control's."""
    p99_ms: float | None = None
    freshness_s: float | None = None
    quarantined: int | None = None
    """Batches that its learners quarantined."""


class PromotionCheck(NamedTuple):
    """One compared figure."""

    name: str
    result: PromotionResult
    text: str


def promotion_checks(rules: PromotionRules, served: ServedFigures) -> list[PromotionCheck]:
    """Return all checks."""
    low, high = rules.level
    batches = "batch" if served.quarantined == 1 else "batches"
    return [
        _loss(rules, served),
        _calibration(rules, served),
        _bounded("level", served.level, low, high, "of the control's mean score"),
        _bounded("p99", served.p99_ms, 0.0, rules.p99_ms, "ms", LARGEST_P99_MS),
        _bounded("freshness", served.freshness_s, 0.0, rules.freshness_s, "s", LARGEST_FRESHNESS_S),
        _bounded("quarantined", served.quarantined, 0.0, rules.quarantined, batches),
    ]


def _loss(rules: PromotionRules, served: ServedFigures) -> PromotionCheck:
    low, high = served.loss_low, served.loss_high
    if low is None:
        text = f"too few batches of {rules.batch_s} s with known outcomes yet"
        return PromotionCheck("loss", PromotionResult.UNKNOWN, text)
    shown = "unbounded" if high is None else f"{high:+.5f}"
    text = f"{low:+.5f} to {shown}, expected at most {rules.worse_by:+.5f}"
    if low > rules.worse_by or math.isnan(low):
        return PromotionCheck("loss", PromotionResult.VIOLATED, text)
    holds = high is not None and high <= rules.worse_by  # False for NaN
    result = PromotionResult.HOLDS if holds else PromotionResult.UNKNOWN
    return PromotionCheck("loss", result, text)


def _calibration(rules: PromotionRules, served: ServedFigures) -> PromotionCheck:
    clicks, expected = served.clicks, served.expected_clicks
    if math.isnan(expected):
        return PromotionCheck("calibration", PromotionResult.VIOLATED, "NaN expected clicks")
    if not clicks and not expected:
        return PromotionCheck("calibration", PromotionResult.UNKNOWN, "no clicks yet")
    low, high = rules.calibration
    error = _STANDARD_ERRORS * math.sqrt(clicks + 1.0)
    least, most = expected / (clicks + error), expected / max(clicks - error, 1e-9)
    text = f"{expected:.1f} expected clicks, {counted(clicks, 'click')}, bounds {low:g} to {high:g}"
    if most < low or least > high:
        return PromotionCheck("calibration", PromotionResult.VIOLATED, text)
    holds = clicks > 0 and low <= expected / clicks <= high
    return PromotionCheck(
        "calibration", PromotionResult.HOLDS if holds else PromotionResult.UNKNOWN, text
    )


def _bounded(
    name: str,
    value: float | None,
    low: float,
    high: float,
    unit: str,
    largest: float = math.inf,
) -> PromotionCheck:
    """Return the check of a figure with bounds. largest: the largest value that is measured."""
    if value is None:
        return PromotionCheck(name, PromotionResult.UNKNOWN, "no figure yet")
    shown = f"more than {largest:g}" if value > largest else f"{value:.4g}"
    text = f"{shown} {unit}, expected {f'{low:g} to ' if low else 'at most '}{high:g}"
    holds = low <= value <= high  # False for NaN
    return PromotionCheck(name, PromotionResult.HOLDS if holds else PromotionResult.VIOLATED, text)
