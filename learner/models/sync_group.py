"""The interface between the loop and a group of learners that step their layers together.

A spec with `[model] synchronous = true` has its layers stepped by all learners at once: in a round
each brings the gradient of one mini-batch, or nothing, and all take the same step. The loop sees
four things of it. A learner with nothing to learn still takes part in the rounds. A step taken by
all cannot be undone, so each mini-batch is inspected before it enters a round, and the loop reports
those that were quarantined. And any event that contradicts an earlier step ends the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.pserver.rows.table import RowTable


class Quarantined(NamedTuple):
    """Examples [begin, end) of a batch that were not learned, and why."""

    begin: int
    end: int
    reason: str


class MiniBatchEvidence(NamedTuple):
    """The effect that one mini-batch would have on a model."""

    scores: npt.NDArray[np.float64]  # (n,) probabilities of a click, clicks included
    labels: npt.NDArray[np.uint8]  # (n,)
    scored: npt.NDArray[np.bool_]  # (n,) False for clicks, whose impression was scored before
    largest_gradient: float
    """The largest derivative of the loss by a float of a row or layer; NaN if one is NaN."""


class SyncGroup:
    """A learner's part in a group: here of a learner that steps on its own.

    Each round of each member needs all of them. A single learner can undo what it learned, so its
    guard judges a mini-batch afterwards, and nothing has to be done here.
    """

    busy = False
    """Whether any member had examples in the last round."""

    def inspect_with(self, inspect: Callable[[MiniBatchEvidence], str | None]) -> None:
        """Inspect every mini-batch before its round: a reason, if not None, keeps it out."""

    def quarantined(self) -> Sequence[Quarantined]:
        """Return what was kept out of rounds since the last call."""
        return ()

    def idle(self, view: RowTable) -> None:
        """Take part in a round with nothing. Raises GroupBroken."""

    def leave(self, why: str) -> None:
        """Raise GroupBroken, here and soon in all members."""
