"""Plans the moments of a demo, announces them, and measures the recovery from drift."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.deploy.reports.model_comparison import ModelComparison

_WINDOW_S = 3.0
"""At the rate of the demo, long enough for an AUC that is exact to 0.01 or 0.02."""
_BEFORE_S = 12.0
_NEAR = 0.03
"""Difference of AUC below which the model has recovered."""


class DemoSchedule(NamedTuple):
    """The moments of a demo, in seconds from its start."""

    seconds: float
    frozen_s: float
    upheaval_s: float


class DriftReport(NamedTuple):
    """The effect of a sudden drift on the live model."""

    at_s: float
    before: float
    """AUC just before the drift."""
    lowest: float
    """Lowest AUC of a short window after the drift."""
    frozen: float
    """AUC of the frozen model after the drift."""
    recovered_s: float | None
    """Time until the model ranked as well as before. None: not before the end."""

    def in_words(self) -> str:
        """Return the report as a sentence."""
        text = (
            f"Drift: at {self.at_s:.0f} s the appeal of every item changed at once. The live "
            f"model's AUC fell from {self.before:.3f} to {self.lowest:.3f}"
        )
        if self.recovered_s is None:
            return text + " and had not fully recovered at the end."
        kept = "" if math.isnan(self.frozen) else f"; the frozen one stayed at {self.frozen:.3f}"
        return text + f" and was back after {self.recovered_s:.0f} s{kept}."


def observed_drift(comparison: ModelComparison, at_s: float) -> DriftReport | None:
    """Return the report; None if there are too few impressions before or after."""
    before = comparison.snapshot(at_s - _BEFORE_S, at_s).live
    windows: list[tuple[float, float]] = []
    begin_s = at_s
    while (snapshot := comparison.snapshot(begin_s, begin_s + _WINDOW_S)).impressions:
        if not math.isnan(snapshot.live):
            windows.append((begin_s + _WINDOW_S, snapshot.live))
        begin_s += _WINDOW_S
    if math.isnan(before) or not windows:
        return None
    low_s, lowest = min(windows, key=lambda each: each[1])
    back = [end_s for end_s, live in windows if end_s > low_s and live >= before - _NEAR]
    recovered_s = back[0] - at_s if back else None
    return DriftReport(
        at_s, before, lowest, comparison.snapshot(at_s, math.inf).frozen, recovered_s
    )


def announcement(acts: DemoSchedule) -> str:
    """Return the announcement of the moments, in one line."""
    return (
        f"{acts.seconds:.0f} s of demo: a synthetic site with users and changing items; at "
        f"{acts.frozen_s:.0f} s, a copy of the model stops learning; at {acts.upheaval_s:.0f} s, "
        "the appeal of every item changes"
    )
