"""Additive sums over scored impressions: minutes add up to hours, partitions to a total.

Every metric of a window is computed from a `Tally`, and the tally of two sets of impressions is the
sum of their tallies. All values are integers: scores fall into bins of their logit, and summands
(losses, scores, AUCs of requests) are rounded once, per impression or request, to `UNIT`. Merging
is therefore associative and commutative to the bit, and a recount in any other order agrees.

A histogram cannot order two scores in one bin. It counts them as a tie, which may be wrong by half.
The AUC of a histogram is thus off by at most half the share of pairs within one bin, which the
histogram can count: `auc_error`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.learner.validation.progressive import request_aucs

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint64]

BINS_PER_LOGIT = 64
"""Two scores in one bin differ in their odds by less than 1.6 %."""
UNIT = float(1 << 32)
"""Summands are rounded to 1 / UNIT: an error of a billionth each, even over a billion of them."""
_LEAST = 1e-15
"""Smallest distance of probabilities from 0 and 1, as in `learner.validation.progressive`."""
_ZERO = 1 << 12
"""The bin of logit 0. Bins count from the smallest possible score."""


def _none() -> Longs:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over a set of impressions with a score and an outcome."""

    keys: Longs = field(default_factory=_none)  # (k,) ascending: 2 * bin + label
    counts: Longs = field(default_factory=_none)  # (k,) impressions
    score_sum: int = 0
    """In 1 / UNIT, as all sums."""
    loss_sum: int = 0
    requests: int = 0
    """Requests with both labels."""
    request_auc_sum: int = 0
    compared: int = 0
    """Impressions that the learner scored, too."""
    difference_sum: int = 0
    """Served score minus score at learning."""
    distance_sum: int = 0
    """Absolute difference."""

    @property
    def impressions(self) -> int:
        """Count of impressions."""
        return int(self.counts.sum())

    @property
    def clicks(self) -> int:
        """Count of clicked impressions."""
        return int(self.counts[self.keys % 2 == 1].sum())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tally)
            and np.array_equal(self.keys, other.keys)
            and np.array_equal(self.counts, other.counts)
            and self.sums == other.sums
        )

    def __hash__(self) -> int:
        return hash(self.sums)

    @property
    def sums(self) -> tuple[int, ...]:
        """All sums, in the order of the fields."""
        return (
            *(self.score_sum, self.loss_sum, self.requests, self.request_auc_sum),
            *(self.compared, self.difference_sum, self.distance_sum),
        )


class MeasuredValues:
    """Scored impressions of which any subset can be tallied.

    The expensive steps are done once for all slices: logarithms, and the order within requests.
    """

    def __init__(
        self, labels: Labels, scores: Floats, requests: Hashes, learned: Floats | None = None
    ) -> None:
        """All arrays have shape (n,). `learned`: the score at learning, NaN if unknown."""
        self.order = np.lexsort((scores, requests))
        self._labels, self._scores = labels[self.order], scores[self.order]
        self._requests = requests[self.order]
        self._keys = 2 * bins(self._scores) + self._labels
        likely = np.where(self._labels > 0, self._scores, 1.0 - self._scores)
        self._losses = _fixed(-np.log(np.clip(likely, _LEAST, 1.0)))
        self._fixed_scores = _fixed(self._scores)
        known = np.full(labels.shape, np.nan) if learned is None else learned[self.order]
        self._compared = ~np.isnan(known)
        self._differences = _fixed(np.where(self._compared, self._scores - known, 0.0))

    def tally(self, chosen: npt.NDArray[np.bool_]) -> Tally:
        """Return the tally of the chosen impressions, mask of shape (n,)."""
        mine = chosen[self.order]
        histogram = np.bincount(self._keys[mine])
        keys = np.flatnonzero(histogram)
        aucs = request_aucs(self._labels[mine], self._scores[mine], self._requests[mine])
        differences = self._differences[mine]
        return Tally(
            keys.astype(np.int64),
            histogram[keys].astype(np.int64),
            int(self._fixed_scores[mine].sum()),
            int(self._losses[mine].sum()),
            int(aucs.shape[0]),
            int(_fixed(aucs).sum()),
            int(self._compared[mine].sum()),
            int(differences.sum()),
            int(np.abs(differences).sum()),
        )


def bins(scores: Floats) -> Longs:
    """Return the bin of each score's logit, in steps of 1 / BINS_PER_LOGIT."""
    kept = np.clip(scores, _LEAST, 1.0 - _LEAST)
    logits = np.log(kept) - np.log1p(-kept)
    found: Longs = np.floor(logits * BINS_PER_LOGIT).astype(np.int64) + _ZERO
    return found


def merge(tallies: Sequence[Tally]) -> Tally:
    """Return the tally of all impressions. The order of the tallies does not matter."""
    if len(tallies) == 1:
        return tallies[0]
    keys, place = np.unique(
        np.concatenate([_none(), *(each.keys for each in tallies)]), return_inverse=True
    )
    counts = np.zeros(keys.shape[0], np.int64)
    np.add.at(counts, place, np.concatenate([_none(), *(each.counts for each in tallies)]))
    return Tally(
        keys, counts, *(sum(each) for each in zip(*(t.sums for t in tallies), strict=True))
    )


def auc(of: Tally) -> tuple[float, float]:
    """Return the AUC and the bound of its error; NaN without both labels.

    Pairs within one bin count half. The bound holds for every order of scores within the bins.
    """
    positive = of.keys % 2 == 1
    places, place = np.unique(of.keys // 2, return_inverse=True)
    by_label = np.zeros((2, places.shape[0]))
    by_label[0] = np.bincount(place, np.where(positive, 0, of.counts), places.shape[0])
    by_label[1] = np.bincount(place, np.where(positive, of.counts, 0), places.shape[0])
    negatives, positives = by_label
    pairs = float(positives.sum() * negatives.sum())
    if not pairs:
        return float("nan"), float("nan")
    below = np.cumsum(negatives) - negatives
    tied = float((positives * negatives).sum())
    wins = float((positives * below).sum()) + tied / 2
    return wins / pairs, tied / 2 / pairs


def score_drift(now: Tally, before: Tally) -> float:
    """Return the population stability index of the scores against the previous scores.

    The sum of (p - q) * ln(p / q) over deciles of the previous scores (Siddiqi, "Credit Risk
    Scorecards", 2006, ch. 8). By convention, below 0.1 is stable and above 0.25 is a shift. NaN if
    either side has no scores.
    """
    if not (now.impressions and before.impressions):
        return float("nan")
    total = np.cumsum(before.counts)
    tenths = np.searchsorted(total, total[-1] * np.arange(1, 10) / 10)
    edges = np.unique(before.keys[tenths] // 2)
    # half an impression in addition to each group: an empty group would make the index infinite
    p, q = (
        np.bincount(np.searchsorted(edges, each.keys // 2), each.counts, edges.shape[0] + 1) + 0.5
        for each in (now, before)
    )
    p, q = p / p.sum(), q / q.sum()
    return float(((p - q) * np.log(p / q)).sum())


def _fixed(values: Floats) -> Longs:
    return np.rint(values * UNIT).astype(np.int64)
