"""What happens in a demo and when, said before it begins, and how it took the worst of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.deploy.reports import ModelComparison

_WINDOW_S = 3.0
"""Enough impressions for an AUC that is right to a hundredth or two, at the demo's rate."""
_BEFORE_S = 12.0
_NEAR = 0.03
"""Of what it was: so close, the model has recovered."""


class DemoSchedule(NamedTuple):
    """The moments of a demo, in seconds from its begin."""

    seconds: float
    frozen_s: float
    upheaval_s: float | None
    killed_s: float | None
    from_log: bool


class DriftReport(NamedTuple):
    """How the live model took it that everything it knew of items became wrong at once."""

    at_s: float
    before: float
    """AUC of the seconds before."""
    lowest: float
    """Of any few seconds after."""
    frozen: float
    """The frozen model's from then on."""
    recovered_s: float | None
    """Until it ranked as well as before; None: not in the time there was."""

    def in_words(self) -> str:
        """Return it as a sentence."""
        text = (
            f"Drift: at {self.at_s:.0f} s all items on the site got another appeal at once. The "
            f"live model's AUC fell from {self.before:.3f} to {self.lowest:.3f}"
        )
        if self.recovered_s is None:
            return text + " and had not fully recovered at the end."
        kept = "" if math.isnan(self.frozen) else f"; the frozen one stayed at {self.frozen:.3f}"
        return text + f" and was back after {self.recovered_s:.0f} s{kept}."


def observed_drift(race: ModelComparison, at_s: float) -> DriftReport | None:
    """Return how it went; None if there is too little to see on either side."""
    before = race.standing(at_s - _BEFORE_S, at_s).live
    windows: list[tuple[float, float]] = []
    begin_s = at_s
    while (standing := race.standing(begin_s, begin_s + _WINDOW_S)).impressions:
        if not math.isnan(standing.live):
            windows.append((begin_s + _WINDOW_S, standing.live))
        begin_s += _WINDOW_S
    if math.isnan(before) or not windows:
        return None
    low_s, lowest = min(windows, key=lambda each: each[1])
    back = [end_s for end_s, live in windows if end_s > low_s and live >= before - _NEAR]
    recovered_s = back[0] - at_s if back else None
    return DriftReport(at_s, before, lowest, race.standing(at_s, math.inf).frozen, recovered_s)


def announcement(acts: DemoSchedule) -> str:
    """Return what there will be to see, and when."""
    if acts.from_log:
        told = ["a client has the server rank each request before anything of it is known"]
    else:
        told = ["a site with users and items, which come and go"]
    told.append(f"at {acts.frozen_s:.0f} s the model is copied, and the copy learns no more")
    if acts.upheaval_s is not None:
        told.append(f"at {acts.upheaval_s:.0f} s all that is liked changes at once")
    if acts.killed_s is not None:
        told.append(f"at {acts.killed_s:.0f} s the learner is killed, and comes back")
    return f"in {acts.seconds:.0f} s: " + "; ".join(told)
