"""Interface and status of a model's rows, independent of their origin.

The rows may be a full replica or a row cache that follows the parameter server, a snapshot, or the
rows of another process. Request handlers see the same interface: rows to read, and an immutable
`ReplicaStatus` that is replaced as a whole, so that an answer describes one moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.ingest.features.encoder import Encoded
from headrace.pserver.errors import StoreError
from headrace.pserver.rows.table import RowTable
from headrace.serving.replicas.freshness import UNKNOWN_AGES, Ages, FreshnessSummary

LATE_MS = 1_000
"""A replica whose last poll is older than this is `behind`, for any reason."""
STATES = ("incomplete", "snapshot", "trouble", "unreachable", "starting", "behind", "fresh")
"""States of a replica, the worst first: not complete yet; a snapshot, which never changes; an error
that needs an operator; buckets that do not respond; complete, but never yet at the end of the logs;
no longer at the end of the logs; up to date."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status of a replica after its last poll."""

    buckets: int
    complete: bool = False
    copied: int = 0
    """Buckets with a complete copy."""
    unreachable: int = 0
    """Buckets that failed to respond to the last poll."""
    version: int = 0
    """Sum of the versions of all buckets. Grows with every folded push."""
    rows: int = 0
    ages: Ages = UNKNOWN_AGES
    newest_event_ms: int | None = None
    """Largest event time learned, in the freshest bucket; None if unknown."""
    oldest_event_ms: int | None = None
    """The same in the stalest bucket."""
    behind: bool = True
    """Whether the last poll left entries in the log of some bucket."""
    caught_up: bool = False
    """Whether any poll since completion reached the end of all logs."""
    polled_ms: int = 0
    """Wall time of the last poll; 0 if never."""
    trouble: str = ""
    """An error that needs an operator; empty if there is no error."""
    snapshot: str = ""
    """Name of the served snapshot; empty if the rows follow the logs."""

    def state(self, now_ms: int) -> str:
        """Return one of STATES: the worst that holds at `now_ms`."""
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
    """The rows of a model, for the lifetime of a server."""

    @property
    def status(self) -> ReplicaStatus:
        """The current status."""

    @property
    def failure(self) -> StoreError | None:
        """The error that prevents answers; None if the rows can answer, or still load."""

    def reading(self, since_s: float | None = None) -> RowSource:
        """Return the rows for one request.

        since_s: monotonic time at which the request was queued; None: now.
        """

    def freshness(self) -> FreshnessSummary:
        """Return percentiles of recent freshness. Computed on every call."""

    def start(self) -> None:
        """Begin to load the rows, or to follow the logs."""

    def stop(self) -> None:
        """End the thread that `start` began. The rows stay."""


class RowSource(Protocol):
    """The rows for one prediction."""

    @property
    def defaulted(self) -> int:
        """Count of rows that did not arrive in time and were read with initial values."""

    def table_for(self, features: Encoded, event_ms: npt.NDArray[np.int64]) -> RowTable:
        """Return a table with the rows."""


class TableRowSource:
    """A full table: rows that are missing do not exist."""

    defaulted = 0
    """Always 0."""

    def __init__(self, table: RowTable) -> None:
        self._table = table

    def table_for(self, features: Encoded, event_ms: npt.NDArray[np.int64]) -> RowTable:  # noqa: ARG002
        """Return the table."""
        return self._table


class Age(msgspec.Struct, frozen=True, gc=False):
    """Now minus the append time of the newest event learned, in ms; null if unknown."""

    newest: int | None
    """In the freshest bucket."""
    oldest: int | None
    """In the stalest bucket. Both grow while no events arrive."""


class EventTime(msgspec.Struct, frozen=True, gc=False):
    """Event time of the newest event learned, Unix time in ms; null if unknown."""

    newest: int | None
    """In the freshest bucket."""
    oldest: int | None
    """In the stalest bucket."""


def age(status: ReplicaStatus, now_ms: int) -> Age:
    """Return the age of the rows at `now_ms`, by append time."""
    return _age(*status.ages, now_ms)


def event_time(status: ReplicaStatus) -> EventTime:
    """Return the newest event times learned."""
    return EventTime(status.newest_event_ms, status.oldest_event_ms)


def event_age(status: ReplicaStatus, now_ms: int) -> Age:
    """Return the age of the rows at `now_ms`, by event time."""
    return _age(status.newest_event_ms, status.oldest_event_ms, now_ms)


def _age(newest: int | None, oldest: int | None, now_ms: int) -> Age:
    return Age(
        None if newest is None else max(0, now_ms - newest),
        None if oldest is None else max(0, now_ms - oldest),
    )
