"""From a network's log-odds to probabilities, compiled: as the other models do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ingest.compiled import kernel
from learner.label_loss import probability_of

if TYPE_CHECKING:
    import numpy.typing as npt


def probabilities(log_odds: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the probability of a click of each example; (n,)."""
    made = np.empty(log_odds.shape[0])
    _make(np.ascontiguousarray(log_odds), made)
    return made


@kernel
def _make(log_odds, made):  # type: ignore[no-untyped-def]
    for i in range(made.shape[0]):
        made[i] = probability_of(np.float64(log_odds[i]))
