"""Breaks down the quality of scores: by score, by slice, by window of time.

One figure over a whole stream hides much. A model may be calibrated overall, but predict too little
where it is unsure and too much where it is sure; it may fail on one device; it may have been good
until yesterday. All figures are counted from the columns that `learner.validation.progressive`
takes, with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.learner.validation.progressive import ProgressiveValidation, progressive

Labels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Chosen = npt.NDArray[Any]
"""Indices, or a mask."""


@dataclass(frozen=True, slots=True)
class ScoredImpressions:
    """Impressions with a score and an outcome, in columns of n."""

    labels: Labels
    """1 if clicked."""
    scores: Floats
    """The first that the impression was given."""
    event_ms: npt.NDArray[np.int64]
    """When it was shown."""
    requests: npt.NDArray[np.int64] | None = None
    """Equal for the impressions of one request."""
    weights: Floats | None = None
    """None: each counts once."""

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def only(self, chosen: Chosen) -> ScoredImpressions:
        """Return those chosen."""
        return ScoredImpressions(
            self.labels[chosen],
            self.scores[chosen],
            self.event_ms[chosen],
            None if self.requests is None else self.requests[chosen],
            None if self.weights is None else self.weights[chosen],
        )

    def figures(self) -> ProgressiveValidation:
        """Return the five figures."""
        return progressive(self.labels, self.scores, self.requests, self.weights)


@dataclass(frozen=True, slots=True)
class Band:
    """Impressions with neighbouring scores."""

    impressions: int
    lowest: float
    highest: float
    predicted: float
    """Mean score."""
    clicked: float
    """Rate of clicks, which it should equal."""
    weight: float
    """Of its impressions together: their number where each counts once."""


@dataclass(frozen=True, slots=True)
class ImpressionGroup:
    """A group of impressions, and the quality of their scores."""

    name: str
    impressions: int
    figures: ProgressiveValidation


def by_decile(scored: ScoredImpressions, bands: int = 10) -> list[Band]:
    """Return ten bands of equally many impressions (by weight), from the lowest scores up.

    Equal scores stay together, so there may be fewer bands.
    """
    if not len(scored):
        return []
    order = np.argsort(scored.scores, kind="stable")
    scores, labels = scored.scores[order], scored.labels[order]
    weights = np.ones(len(scored)) if scored.weights is None else scored.weights[order]
    first_of_tie = np.flatnonzero(np.concatenate(([True], scores[1:] != scores[:-1])))
    tied = np.add.reduceat(weights, first_of_tie)
    reached = np.cumsum(tied)
    if not reached[-1]:
        return []
    # a tie belongs where its middle is, so that weight w equals w copies
    band = np.minimum((bands * (reached - tied / 2) / reached[-1]).astype(np.int64), bands - 1)
    band = np.repeat(band, np.diff(first_of_tie, append=len(scored)))
    found = []
    for each in np.unique(band):
        mine = band == each
        whole = float(weights[mine].sum())
        if not whole:
            continue
        found.append(
            Band(
                impressions=int(mine.sum()),
                lowest=float(scores[mine][0]),
                highest=float(scores[mine][-1]),
                predicted=float((scores * weights)[mine].sum()) / whole,
                clicked=float((labels * weights)[mine].sum()) / whole,
                weight=whole,
            )
        )
    return found


def calibration_error(bands: list[Band]) -> float:
    """Return the distance of predicted and clicked, on average over impressions, by weight.

    Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015: the
    expected calibration error.
    """
    whole = sum(each.weight for each in bands)
    apart = sum(each.weight * abs(each.predicted - each.clicked) for each in bands)
    return apart / whole if whole else float("nan")


def by_slice(scored: ScoredImpressions, values: pa.Array, most: int = 20) -> list[ImpressionGroup]:
    """Return the figures of the most frequent values of a raw field; values: (n,) strings.

    Impressions without a value are named "", which producers never send.
    """
    codes = pc.fill_null(values.cast("string"), "").dictionary_encode()
    indices, names = codes.indices.to_numpy(), codes.dictionary.to_pylist()
    counts = np.bincount(indices, minlength=len(names))
    found = []
    for code in np.argsort(-counts, kind="stable")[:most].tolist():
        mine = scored.only(np.flatnonzero(indices == code))
        found.append(ImpressionGroup(names[code], len(mine), mine.figures()))
    return found


def by_window(
    scored: ScoredImpressions, length_ms: int, step_ms: int
) -> list[tuple[int, ImpressionGroup]]:
    """Return the figures of windows of event time, each `step_ms` after the one before.

    The first begins with the first impression, the last holds the last. Each comes with its begin,
    in milliseconds; where nothing happened its figures are undefined.
    """
    if not len(scored):
        return []
    order = np.argsort(scored.event_ms, kind="stable")
    times, found = scored.event_ms[order], []
    for begin_ms in _begins(int(times[0]), int(times[-1]), length_ms, step_ms):
        begin, end = np.searchsorted(times, (begin_ms, begin_ms + length_ms))
        mine = scored.only(order[begin:end])
        found.append((begin_ms, ImpressionGroup("", len(mine), mine.figures())))
    return found


def _begins(first_ms: int, last_ms: int, length_ms: int, step_ms: int) -> Iterator[int]:
    yield first_ms
    while first_ms + length_ms <= last_ms:
        first_ms += step_ms
        yield first_ms
