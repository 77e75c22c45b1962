"""The interface between the loop and a group of learners that step their layers together.

A spec with `[model] synchronous = true` has its layers stepped by all learners at once: in a round
each brings the gradient of one mini-batch, or nothing, and all take the same step. The loop sees
four things of it. A learner with nothing to learn still takes part in the rounds. A step taken by
all cannot be undone, so each mini-batch is inspected before it enters a round, and the loop reports
those that were quarantined. And any event that contradicts an earlier step ends the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

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


class SyncGroup(Protocol):
    """A learner's part in a group. Each round of each member needs all of them."""

    @property
    def busy(self) -> bool:
        """Whether any member had examples in the last round."""

    def inspect_with(self, inspect: Callable[[MiniBatchEvidence], str | None]) -> None:
        """Inspect every mini-batch before its round: a reason, if not None, keeps it out."""

    def quarantined(self) -> Sequence[Quarantined]:
        """Return what was kept out of rounds since the last call."""

    def idle(self, view: RowTable) -> None:
        """Take part in a round with nothing. Raises GroupBroken."""

    def leave(self, why: str) -> None:
        """Raise GroupBroken, here and soon in all members."""


class SoloGroup:
    """The group of a learner that steps on its own."""

    busy = False

    def inspect_with(self, inspect: Callable[[MiniBatchEvidence], str | None]) -> None:
        """Do nothing: the steps of one learner can be undone, so its guard judges afterwards."""

    def quarantined(self) -> Sequence[Quarantined]:
        """Return nothing."""
        return ()

    def idle(self, view: RowTable) -> None:
        """Do nothing."""

    def leave(self, why: str) -> None:
        """Do nothing: what one learner learned can be undone."""
