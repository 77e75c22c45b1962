"""A model's rows on this server, wherever they come from, and how they stand.

Rows may follow the logs of the parameter server, all of them or those that are asked for, or be a
snapshot. To who answers requests they are alike: something to read from, and a `Standing` that is
put in its place whole, so that an answer speaks of one moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from serving.replicas.freshness import Ages  # noqa: TC001 - read when it goes to another process

if TYPE_CHECKING:
    from pserver.errors import StoreError
    from serving.models.predictor import Rows
    from serving.replicas.freshness import Summary

LATE_MS = 1_000
"""Logs that were not read for so long are not followed, whatever the reason."""
STATES = ("incomplete", "snapshot", "trouble", "unreachable", "starting", "behind", "fresh")
"""How a model's rows may stand, the worst first: not complete yet; a snapshot, which stays as it
is; something that an operator has to mend; buckets that do not answer; complete, and not yet at the
end of the logs; not at their end any more; and as it should be."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a replica stood after its last poll."""

    complete: bool
    buckets: int
    copied: int
    """Buckets of which it holds a complete copy."""
    unreachable: int
    """Buckets that could not be followed when last asked."""
    version: int
    """Sum of the versions of all buckets: grows with every push that was folded."""
    rows: int
    ages: Ages
    newest_event_ms: int | None
    """Greatest event time learned from, of the bucket that is ahead; None if none is known."""
    oldest_event_ms: int | None
    """Of the bucket that is behind."""
    behind: bool
    """The last poll did not come to the end of some bucket's log."""
    caught_up: bool
    """Some poll has, since the replica is complete."""
    polled_ms: int
    """Wall clock when the logs were last read; 0 if never."""
    copies: int
    """Buckets copied since the start."""
    trouble: str = ""
    """What was said that an operator has to mend; empty if nothing."""
    snapshot: str = ""
    """The snapshot that the rows are, and stay; empty if they follow the logs."""

    def state(self, now_ms: int) -> str:
        """Return one of STATES: the worst that is true at `now_ms`."""
        if not self.complete:
            return "incomplete"
        if self.snapshot:
            return "snapshot"
        if self.trouble:
            return "trouble"
        if self.unreachable:
            return "unreachable"
        if not self.caught_up:
            return "starting"
        if self.behind or now_ms - self.polled_ms > LATE_MS:
            return "behind"
        return "fresh"


class LocalRows(Protocol):
    """A model's rows, as long as a server runs."""

    @property
    def standing(self) -> Standing:
        """How they stand now."""

    @property
    def failure(self) -> StoreError | None:
        """Why there is nothing to answer from; None as long as there is, or will be."""

    def reading(self, since_s: float | None = None) -> Rows:
        """Return what one request reads from.

        since_s: when it began to wait for its answer, by the clock that never goes back; None: now.
        """

    def freshness(self) -> Summary:
        """Return the percentiles of recent freshness: not free, so only made when asked for."""

    def start(self) -> None:
        """Begin to get them, and to follow if they do."""

    def stop(self) -> None:
        """End what `start` began; what is here stays."""
