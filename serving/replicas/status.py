"""A model's rows on this server, wherever they come from, and how they stand.

RowSource may follow the logs of the parameter server, all of them or those that are asked for, or
be a snapshot. To who answers requests they are alike: something to read from, and a `ReplicaStatus`
that is put in its place whole, so that an answer speaks of one moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.serving.replicas.freshness import Ages  # noqa: TC001 - read when it goes to another process

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.ingest.features import Encoded
    from headrace.pserver import StoreError
    from headrace.pserver.rows import RowTable
    from headrace.serving.replicas.freshness import FreshnessSummary

LATE_MS = 1_000
"""Logs that were not read for so long are not followed, whatever the reason."""
STATES = ("incomplete", "snapshot", "trouble", "unreachable", "starting", "behind", "fresh")
"""How a model's rows may stand, the worst first: not complete yet; a snapshot, which stays as it
is; something that an operator has to mend; buckets that do not answer; complete, and not yet at the
end of the logs; not at their end any more; and as it should be."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
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
    def standing(self) -> ReplicaStatus:
        """How they stand now."""

    @property
    def failure(self) -> StoreError | None:
        """Why there is nothing to answer from; None as long as there is, or will be."""

    def reading(self, since_s: float | None = None) -> RowSource:
        """Return what one request reads from.

        since_s: when it began to wait for its answer, by the clock that never goes back; None: now.
        """

    def freshness(self) -> FreshnessSummary:
        """Return the percentiles of recent freshness: not free, so only made when asked for."""

    def start(self) -> None:
        """Begin to get them, and to follow if they do."""

    def stop(self) -> None:
        """End what `start` began; what is here stays."""


class RowSource(Protocol):
    """Where the rows come from that a prediction reads."""

    @property
    def defaulted(self) -> int:
        """How many rows were read as if they did not exist, since they were not to be had."""

    def table_for(self, features: Encoded, event_ms: npt.NDArray[np.int64]) -> RowTable:
        """Return a table that has them."""


class TableRowSource:
    """All rows in one table."""

    defaulted = 0
    """Whatever is not here does not exist."""

    def __init__(self, table: RowTable) -> None:
        self._table = table

    def table_for(self, features: Encoded, event_ms: npt.NDArray[np.int64]) -> RowTable:  # noqa: ARG002
        """Return the table."""
        return self._table


class Age(msgspec.Struct, frozen=True, gc=False):
    """Now less the append time of the newest event learned; null if none is known. In ms."""

    newest: int | None
    """Of the bucket that is ahead."""
    oldest: int | None
    """Of the bucket that is behind. Both grow while no event comes."""


class EventTime(msgspec.Struct, frozen=True, gc=False):
    """Event time of the newest event learned, Unix time in ms; null if none is known."""

    newest: int | None
    """Of the bucket that is ahead."""
    oldest: int | None
    """Of the bucket that is behind."""


def age(standing: ReplicaStatus, now_ms: int) -> Age:
    """Return how old the information is at `now_ms`, by append time."""
    return _age(*standing.ages, now_ms)


def event_time(standing: ReplicaStatus) -> EventTime:
    """Return the event times learned."""
    return EventTime(standing.newest_event_ms, standing.oldest_event_ms)


def event_age(standing: ReplicaStatus, now_ms: int) -> Age:
    """Return how old the information is at `now_ms`, by event time."""
    return _age(standing.newest_event_ms, standing.oldest_event_ms, now_ms)


def _age(newest: int | None, oldest: int | None, now_ms: int) -> Age:
    return Age(
        None if newest is None else max(0, now_ms - newest),
        None if oldest is None else max(0, now_ms - oldest),
    )
