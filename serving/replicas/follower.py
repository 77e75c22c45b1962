"""The thread that keeps a server's replica fresh, and says how it stands.

Every few milliseconds it polls the logs and folds what is new. Requests read the same table without
a lock (see `models.predictor`), so nothing here can make one wait but the interpreter's own lock,
which kernels and sockets release.

What others need to know is published as one immutable `ReplicaStatus` after every poll: readers
take the reference and see one moment, whole.

An error of the store that comes before the first copy is complete is kept as `failure`: there is
nothing to answer from, and an operator has to act. A server none of whose models can be answered
ends with it; one that has others goes on, and this model as soon as the error is mended. A replica
that was complete is answered from all the same, staler and staler, and says so: whatever happens to
the parameter server, answers do not stop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from headrace.pserver import StoreError
from headrace.pserver.replica import Copied, Folded, Stale
from headrace.serving.replicas.freshness import FreshnessSummary, FreshnessTracker
from headrace.serving.replicas.status import ReplicaStatus, TableRowSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.pserver import Shape
    from headrace.pserver.replica import Change, LogPosition
    from headrace.pserver.rows import RowTable
    from headrace.serving.replicas.status import LocalRows, RowSource

log = logging.getLogger(__name__)

_RETRY_S = 1.0
"""After an error that an operator has to mend: often enough to notice that he did."""
_JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Following:
    """How closely to follow the logs."""

    poll_interval_ms: int = 20
    """Adds half of itself to freshness, and costs a round trip to every node each time."""
    entries_a_poll: int = 64
    """Of one bucket: what is folded before anything else is looked at."""
    busy_share: float = 0.5
    """At most this part of the thread's time goes into polling: requests need the rest."""


class Followed(Protocol):
    """What keeps rows up with the logs: a Replica, or part of one."""

    shape: Shape

    @property
    def table(self) -> RowTable:
        """The rows, which others may read."""

    @property
    def complete(self) -> bool:
        """Whether there is something to answer from."""

    @property
    def buckets(self) -> list[int]:
        """The buckets that are followed."""

    def copied(self, bucket: int) -> bool:
        """Whether a bucket has a position."""

    def position(self, bucket: int) -> LogPosition:
        """Return how far a bucket was followed."""

    def poll(self, limit: int) -> list[Change]:
        """Take in what is new, up to `limit` entries a bucket; return what changed, in order."""

    def compact(self) -> object:
        """Give back the memory of rows that were removed, if they are many."""


class Follower:
    """Follows one model's logs, in a thread between `start` and `stop`."""

    def __init__(
        self,
        replica: Followed,
        following: Following,
        now_ms: Callable[[], int],
        arrived: Callable[[Iterable[int]], None],
        stood: Callable[[LocalRows], None] | None = None,
    ) -> None:
        """Give every batch of freshness samples, in ms, to `arrived`.

        `stood` is called after each poll, with this, by the thread that polls.
        """
        self._replica, self._following, self._now_ms = replica, following, now_ms
        self._arrived, self._stood = arrived, stood
        self._freshness = FreshnessTracker(replica.shape.buckets)
        self._copies = 0
        self._polled_ms = 0
        self._stale: frozenset[int] = frozenset()
        self._behind, self._caught_up = True, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self.failure: StoreError | None = None
        """Why it cannot be completed now; who mends that sees it go on."""
        self.standing = self._stand()

    @property
    def table(self) -> RowTable:
        """The rows, to be read only."""
        return self._replica.table

    def reading(self, since_s: float | None = None) -> RowSource:  # noqa: ARG002 (nothing is waited for)
        """Return what a request reads from: all rows are here."""
        return TableRowSource(self._replica.table)

    def freshness(self) -> FreshnessSummary:
        """Return the percentiles of recent freshness: not free, so only made when asked for."""
        return self._freshness.summary()

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what was folded stays."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def step(self) -> None:
        """Poll and fold once, note what has arrived, publish how it stands. Raises StoreError."""
        was_complete = self._replica.complete
        stale: dict[int, StoreError] = {}
        entries: Counter[int] = Counter()
        for change in self._replica.poll(self._following.entries_a_poll):
            match change:
                case Folded(bucket=bucket, header=header) if was_complete:
                    self._freshness.folded(bucket, header)
                    entries[bucket] += 1
                case Folded(bucket=bucket) | Copied(bucket=bucket):
                    self._note_position(bucket)
                    self._copies += isinstance(change, Copied)
                case Stale(bucket=bucket, error=error):
                    stale[bucket] = error
        self._replica.compact()  # requests hold the columns they began with
        self._behind = max(entries.values(), default=0) >= self._following.entries_a_poll
        self._caught_up |= was_complete and not (self._behind or stale)
        self._polled_ms = now = self._now_ms()
        self._tell_stale(stale)
        self._arrived(self._freshness.arrived(now))
        self.standing = self._stand()

    def _note_position(self, bucket: int) -> None:
        position = self._replica.position(bucket)
        stops = {source: reached.stop for source, reached in position.reached.items()}
        self._freshness.copied(bucket, position.append_ms, stops)

    def _tell_stale(self, stale: Mapping[int, StoreError]) -> None:
        if stale and not self._stale:
            bucket, error = next(iter(stale.items()))
            log.warning("%d buckets get staler, bucket %d since: %s", len(stale), bucket, error)
        elif self._stale and not stale:
            log.info("all buckets are followed again")
        self._stale = frozenset(stale)

    def _stand(self) -> ReplicaStatus:
        replica = self._replica
        copied = [bucket for bucket in replica.buckets if replica.copied(bucket)]
        events = [replica.position(bucket).event_ms for bucket in copied]
        return ReplicaStatus(
            complete=replica.complete,
            buckets=replica.shape.buckets,
            copied=len(copied),
            unreachable=len(self._stale),
            version=sum(replica.position(bucket).version for bucket in copied),
            rows=len(replica.table),
            ages=self._freshness.ages(),
            newest_event_ms=max(events, default=0) or None,
            oldest_event_ms=min(events, default=0) or None if replica.complete else None,
            behind=self._behind,
            caught_up=self._caught_up,
            polled_ms=self._polled_ms,
            copies=self._copies,
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self.step()
                self.failure = None
                self._tell_stood()
                self._rest(self._rest_s(time.monotonic() - began))
            except StoreError as error:
                if self.standing.trouble != str(error):
                    here = "what is here" if self._replica.complete else "nothing yet"
                    log.error("answering from %s, since: %s", here, error)
                self.standing = replace(self.standing, trouble=str(error))
                if not self._replica.complete:
                    self.failure = error
                self._tell_stood()
                self._ended.wait(_RETRY_S)

    def _tell_stood(self) -> None:
        if self._stood is not None:
            self._stood(self)

    def _rest(self, seconds: float) -> None:
        """Let this time pass, or the end come. Raises StoreError."""
        self._ended.wait(seconds)

    def _rest_s(self, busy_s: float) -> float:
        interval_s = self._following.poll_interval_ms / 1000
        if not self._replica.complete:
            return interval_s if self._stale else 0.0  # nobody is answered yet: copy at full speed
        share = self._following.busy_share
        return max(interval_s - busy_s, busy_s * (1 - share) / share)
