"""Two models on the same impressions: the live one, and one that stopped learning.

`ModelComparison` keeps, for every impression, when it came by, whether it was clicked, and what
each model gave it: the live score as the learner made it (topic `scores`), the frozen one computed
here from a copy of the rows that is never brought up to date. Where the truth is known, that too:
no model can be expected to do better than it.

An impression may be met first in the scores or first in the examples; its place is made by
whichever comes first, and only impressions with everything known are compared.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.ingest.examples import Kind
from headrace.learner.validation import auc

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.ingest.features import Encoded
    from headrace.learner.loop import Scores

    Floats = npt.NDArray[np.float64]
    Predict = Callable[[Encoded, npt.NDArray[np.int64]], Floats]

_SMALLEST = 4096


class ComparisonSnapshot(NamedTuple):
    """AUC of each over the same impressions; NaN where there is nothing to compare."""

    live: float
    frozen: float
    truth: float
    impressions: int
    live_loss: float = math.nan
    """Mean log loss, in nats."""
    frozen_loss: float = math.nan
    served: float = math.nan
    """Of what the server had answered before the impressions were sent."""
    served_loss: float = math.nan


class ModelComparison:
    """Scores and outcomes of impressions, by the time they came by (seconds, `at_s`)."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        # columns: at_s, live, frozen, truth, served; NaN where not known
        self._known = np.full((5, _SMALLEST), np.nan)
        self._labels = np.zeros(_SMALLEST, np.uint8)
        self.frozen: Predict | None = None
        """Scores impressions as a model would that stopped learning; from when it is set on."""
        self.shows = 0
        self.clicks = 0
        self.examples = 0
        self.scored = 0

    def add_examples(self, batch: Examples, at_s: float) -> None:
        """Take a batch of examples that came by at `at_s`."""
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
        self.shows += shown.size
        self.clicks += int(batch.labels.sum())

    def add_scores(self, scores: Scores) -> None:
        """Take a batch of the live model's scores; the first of an impression counts."""
        places = self._find(scores.impression_ids.to_pylist())
        new = np.isnan(self._known[1, places])
        self._known[1, places[new]] = scores.scores[new]
        self.scored += int(new.sum())

    def add_truth(self, impression_ids: Sequence[str], truth: Floats) -> None:
        """Take the true probabilities of impressions."""
        places = self._find(impression_ids)  # first: it may replace the columns
        self._known[3, places] = truth

    def add_served(self, impression_ids: Sequence[str], scores: Sequence[float]) -> None:
        """Take what the server answered of impressions."""
        places = self._find(impression_ids)
        self._known[4, places] = scores

    def standing(self, from_s: float, to_s: float) -> ComparisonSnapshot:
        """Compare on the impressions that came by in [from_s, to_s) and that all have scored."""
        count = len(self._places)
        at_s, live, frozen, truth, served = self._known[:, :count]
        within = (at_s >= from_s) & (at_s < to_s) & ~np.isnan(live)
        compared = within
        for others in (frozen, served):
            known = compared & ~np.isnan(others)
            compared = known if known.any() else compared
        labels = self._labels[:count][compared]
        live, frozen, truth, served = (each[compared] for each in (live, frozen, truth, served))
        return ComparisonSnapshot(
            _auc(labels, live),
            _auc(labels, frozen),
            _auc(labels, truth),
            labels.size,
            _log_loss(labels, live),
            _log_loss(labels, frozen),
            _auc(labels, served),
            _log_loss(labels, served),
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
    # the demo's truth is unknown for a log of others, and the frozen model before it froze
    return float("nan") if np.isnan(scores).any() else auc(labels, scores)
