"""Compares a live and a frozen model on the same impressions.

For every impression `ModelComparison` keeps the time, the label and the scores. The live score is
that of the learner (topic `scores`). The frozen score is computed here from a copy of the rows that
is never updated. If the true probability is known, it is kept too: no model can do better.

Scores and examples of an impression may arrive in either order. The first of them allocates the
place of the impression, and only impressions with every value known are compared.

`observed_drift` measures how the live model recovers from a sudden drift.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.learner.loop.scores import Scores
from headrace.learner.validation.progressive import auc

Floats = npt.NDArray[np.float64]
Predict = Callable[[Encoded, npt.NDArray[np.int64]], Floats]

_SMALLEST = 4096
_DRIFT_WINDOW_S = 3.0
"""At the rate of the demo, long enough for an AUC that is exact to 0.01 or 0.02."""
_BEFORE_S = 12.0
_NEAR = 0.03
"""Difference of AUC below which the model has recovered from drift."""


class ComparisonSnapshot(NamedTuple):
    """AUC and log loss over the same impressions. NaN if there is nothing to compare."""

    live: float
    frozen: float
    truth: float
    impressions: int
    live_loss: float = math.nan
    """Mean log loss, in nats."""
    frozen_loss: float = math.nan


class ModelComparison:
    """Scores and labels of impressions, by arrival time (`at_s`, in seconds)."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        # columns: at_s, live, frozen, truth; NaN if unknown
        self._known = np.full((4, _SMALLEST), np.nan)
        self._labels = np.zeros(_SMALLEST, np.uint8)
        self.frozen: Predict | None = None
        """The frozen model. Set once; later impressions are scored with it."""
        self.examples = 0
        self.scored = 0

    def add_examples(self, batch: Examples, at_s: float) -> None:
        """Add a batch of examples that arrived at `at_s`."""
        shown = np.flatnonzero(batch.kinds != Kind.CLICKED)
        places = self._find(batch.impression_ids.take(shown).to_pylist())
        self._known[0, places] = at_s
        self._labels[places] |= batch.labels[shown]
        if self.frozen is not None and shown.size:
            scores = self.frozen(batch.features, batch.shown_ms)
            self._known[2, places] = scores[shown]
        clicked = np.flatnonzero(batch.kinds == Kind.CLICKED)
        places = self._find(batch.impression_ids.take(clicked).to_pylist())
        self._labels[places] = 1
        self.examples += len(batch)

    def add_scores(self, scores: Scores) -> None:
        """Add a batch of scores of the live model. The first score of an impression counts."""
        places = self._find(scores.impression_ids.to_pylist())
        new = np.isnan(self._known[1, places])
        self._known[1, places[new]] = scores.scores[new]
        self.scored += int(new.sum())

    def add_truth(self, impression_ids: Sequence[str], truth: Floats) -> None:
        """Add the true probabilities of impressions."""
        places = self._find(impression_ids)  # first, because it may replace the columns
        self._known[3, places] = truth

    def snapshot(self, from_s: float, to_s: float) -> ComparisonSnapshot:
        """Compare on the impressions that arrived in [from_s, to_s) and have all scores."""
        count = len(self._places)
        at_s, live, frozen, truth = self._known[:, :count]
        within = (at_s >= from_s) & (at_s < to_s) & ~np.isnan(live)
        known = within & ~np.isnan(frozen)
        compared = known if known.any() else within
        labels = self._labels[:count][compared]
        live, frozen, truth = (each[compared] for each in (live, frozen, truth))
        return ComparisonSnapshot(
            _auc(labels, live),
            _auc(labels, frozen),
            _auc(labels, truth),
            labels.size,
            _log_loss(labels, live),
            _log_loss(labels, frozen),
        )

    def _find(self, impression_ids: Sequence[str]) -> npt.NDArray[np.int64]:
        places = self._places
        found = np.fromiter(
            (places.setdefault(each, len(places)) for each in impression_ids),
            np.int64,
            len(impression_ids),
        )
        while len(places) > self._labels.size:
            self._known = np.concatenate((self._known, np.full_like(self._known, np.nan)), axis=1)
            self._labels = np.concatenate((self._labels, np.zeros_like(self._labels)))
        return found


def _log_loss(labels: npt.NDArray[np.uint8], scores: Floats) -> float:
    if not labels.size or np.isnan(scores).any():
        return float("nan")
    given = np.clip(np.where(labels == 1, scores, 1 - scores), 1e-12, 1.0)
    return float(-np.log(given).mean())


def _auc(labels: npt.NDArray[np.uint8], scores: Floats) -> float:
    # the truth of a log is unknown, and so is the frozen score before the freeze
    return float("nan") if np.isnan(scores).any() else auc(labels, scores)


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
    while (snapshot := comparison.snapshot(begin_s, begin_s + _DRIFT_WINDOW_S)).impressions:
        if not math.isnan(snapshot.live):
            windows.append((begin_s + _DRIFT_WINDOW_S, snapshot.live))
        begin_s += _DRIFT_WINDOW_S
    if math.isnan(before) or not windows:
        return None
    low_s, lowest = min(windows, key=lambda each: each[1])
    back = [end_s for end_s, live in windows if end_s > low_s and live >= before - _NEAR]
    recovered_s = back[0] - at_s if back else None
    return DriftReport(
        at_s, before, lowest, comparison.snapshot(at_s, math.inf).frozen, recovered_s
    )
