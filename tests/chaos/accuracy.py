"""Measures the accuracy of served answers, by the time of the impression.

The server ranks a sample of the impressions as they are shown. The true probability of each click
is known, and no model can do better. Memory holds only windows, and the latest impressions whose
answer or click may still arrive.
"""

import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headrace.learner.validation.progressive import auc

FEWEST = 200
"""Impressions of a window below which its AUC says nothing."""


class Window(NamedTuple):
    """Ranking quality of the impressions shown in one window."""

    begin_s: float
    answered: int
    served: float
    """AUC of the server's scores. NaN with too few answers."""
    truth: float
    """AUC of the true probabilities: the best possible."""


class Accuracy:
    """Collects shown impressions, scores and clicks. Calls may come from several threads."""

    def __init__(self, window_s: float, settle_s: float) -> None:
        """`settle_s`: the longest time from an impression to its click."""
        self._window_s, self._settle_s = window_s, settle_s
        self._lock = threading.Lock()
        # id -> [shown at, truth, score, label]
        self._open: dict[str, list[float]] = {}
        self.windows: list[Window] = []

    def show(self, at_s: float, impression_ids: Sequence[str], truth: Sequence[float]) -> None:
        """Add impressions of the sample, and close the windows that are complete."""
        with self._lock:
            for each, probability in zip(impression_ids, truth, strict=True):
                self._open[each] = [at_s, probability, math.nan, 0.0]
            self._close(at_s - self._settle_s)

    def score(self, impression_ids: Sequence[str], scores: Sequence[float]) -> None:
        """Add what the server answered."""
        self._note(2, impression_ids, scores)

    def click(self, impression_ids: Sequence[str]) -> None:
        """Add clicks. Those outside the sample are ignored."""
        self._note(3, impression_ids, [1.0] * len(impression_ids))

    def _note(self, column: int, impression_ids: Sequence[str], values: Sequence[float]) -> None:
        with self._lock:
            for each, value in zip(impression_ids, values, strict=True):
                if (row := self._open.get(each)) is not None:
                    row[column] = value

    def _close(self, until_s: float) -> None:
        """Turn the windows that ended before `until_s` into figures. Insertion order is by time."""
        while self._open:
            first_s = next(iter(self._open.values()))[0]
            begin_s = first_s - first_s % self._window_s
            if begin_s + self._window_s > until_s:
                return
            shown = [each for each, row in self._open.items() if row[0] < begin_s + self._window_s]
            rows = np.array([self._open.pop(each) for each in shown])
            self.windows.append(window_of(begin_s, rows))


def window_of(begin_s: float, rows: np.ndarray) -> Window:
    """Return the figures of a window; the columns are time, truth, score and label."""
    answered = rows[~np.isnan(rows[:, 2])]
    labels = answered[:, 3].astype(np.uint8)
    if len(answered) < FEWEST or labels.min() == labels.max():
        return Window(begin_s, len(answered), math.nan, math.nan)
    return Window(
        begin_s,
        len(answered),
        float(auc(labels, answered[:, 2])),
        float(auc(labels, answered[:, 1])),
    )
