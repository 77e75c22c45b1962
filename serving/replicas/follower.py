"""Follows the logs of a model in a thread, and publishes the status of the replica.

Every few milliseconds the thread polls the logs and folds new entries. Requests read the same table
without a lock (see `models.predictor`), so they wait for nothing here but the interpreter lock,
which kernels and sockets release.

After every poll the thread publishes an immutable `ReplicaStatus`. A reader takes the reference and
sees one consistent moment.

A store error before the first copy is complete becomes the replica's `failure`: an operator has to
act, because the model cannot answer. A server ends with this error if all its models fail. If other
models work it keeps running, and the failed model recovers once the error is fixed. A replica that
was complete keeps answering with stale rows and reports its state: a failure of the parameter
server never stops answers.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.pserver.errors import StoreError
from headrace.pserver.replica.log_chain import LogPosition
from headrace.pserver.replica.replica import BucketRecopied, Change, Folded, Stale
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from headrace.runtime.background_thread import BackgroundThread
from headrace.runtime.counted_nouns import counted
from headrace.serving.replicas.freshness import FreshnessSummary, FreshnessTracker
from headrace.serving.replicas.status import LocalRows, ReplicaStatus, RowSource, TableRowSource

log = logging.getLogger(__name__)

_RETRY_S = 1.0
"""Pause after an error that needs an operator: short, so that a fix takes effect soon."""
_JOIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Following:
    """Trade-off between freshness and load."""

    poll_interval_ms: int = 20
    """Adds half of itself to freshness. Each poll costs a round trip to every node."""
    entries_a_poll: int = 64
    """Entries per bucket that one poll folds."""
    busy_share: float = 0.5
    """Largest share of time that the thread spends polling. Requests need the rest."""


class Followed(Protocol):
    """Rows that follow the logs: a `Replica` or a `RowCache`."""

    shape: Shape

    @property
    def table(self) -> RowTable:
        """The rows. Other threads may read them."""

    @property
    def complete(self) -> bool:
        """Whether requests can be answered."""

    @property
    def buckets(self) -> list[int]:
        """The followed buckets."""

    def copied(self, bucket: int) -> bool:
        """Whether a bucket has a position."""

    def position(self, bucket: int) -> LogPosition:
        """Return a bucket's position in its log."""

    def poll(self, limit: int) -> list[Change]:
        """Fold up to `limit` new entries per bucket; return the changes in order."""

    def compact(self) -> object:
        """Free the memory of removed rows, if there are many."""


class Follower(BackgroundThread):
    """Follows one model's logs, in a thread between `start` and `stop`."""

    def __init__(
        self,
        replica: Followed,
        following: Following,
        now_ms: Callable[[], int],
        arrived: Callable[[Iterable[int]], None],
        publish: Callable[[LocalRows], None] | None = None,
    ) -> None:
        """Begin without a thread.

        arrived: takes each batch of freshness samples, in ms. publish: called after each poll, on
        the polling thread.
        """
        super().__init__(self._run, "follower", _JOIN_S)
        self._replica, self._following, self._now_ms = replica, following, now_ms
        self._arrived, self._publish = arrived, publish
        self._freshness = FreshnessTracker(replica.shape.buckets)
        self._polled_ms = 0
        self._stale: frozenset[int] = frozenset()
        self._behind, self._caught_up = True, False
        self.failure: StoreError | None = None
        """The error that prevents a first copy; None again once it is fixed."""
        self.status = self._current_status()

    @property
    def table(self) -> RowTable:
        """The rows. Read only."""
        return self._replica.table

    def reading(self, since_s: float | None = None) -> RowSource:  # noqa: ARG002 (never waits)
        """Return the rows for a request: the whole table."""
        return TableRowSource(self._replica.table)

    def freshness(self) -> FreshnessSummary:
        """Return percentiles of recent freshness. Computed on every call."""
        return self._freshness.summary()

    def step(self) -> None:
        """Poll and fold once, record arrivals, publish the status. Raises StoreError."""
        was_complete = self._replica.complete
        stale: dict[int, StoreError] = {}
        entries: Counter[int] = Counter()
        for change in self._replica.poll(self._following.entries_a_poll):
            match change:
                case Folded(bucket=bucket, header=header) if was_complete:
                    self._freshness.folded(bucket, header)
                    entries[bucket] += 1
                case Folded(bucket=bucket) | BucketRecopied(bucket=bucket):
                    self._note_position(bucket)
                case Stale(bucket=bucket, error=error):
                    stale[bucket] = error
        self._replica.compact()  # running requests keep their references to the old columns
        self._behind = max(entries.values(), default=0) >= self._following.entries_a_poll
        self._caught_up |= was_complete and not (self._behind or stale)
        self._polled_ms = now = self._now_ms()
        self._tell_stale(stale)
        if self._replica.complete and not was_complete:
            self._freshness.began(now)
        self._arrived(self._freshness.arrived(now))
        self.status = self._current_status()

    def _note_position(self, bucket: int) -> None:
        position = self._replica.position(bucket)
        stops = {source: reached.stop for source, reached in position.reached.items()}
        self._freshness.copied(bucket, position.append_ms, stops)

    def _tell_stale(self, stale: Mapping[int, StoreError]) -> None:
        if stale and not self._stale:
            bucket, error = next(iter(stale.items()))
            buckets = counted(len(stale), "bucket is", "buckets are")
            log.warning("%s stale; bucket %d: %s", buckets, bucket, error)
        elif self._stale and not stale:
            log.info("no bucket is stale any more")
        self._stale = frozenset(stale)

    def _current_status(self) -> ReplicaStatus:
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
        )

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self.step()
                self.failure = None
                self._publish_status()
                self._rest(self._rest_s(time.monotonic() - began))
            except StoreError as error:
                if self.status.trouble != str(error):
                    rows = "stale rows" if self._replica.complete else "no rows yet"
                    log.error("cannot follow the logs, serving %s: %s", rows, error)
                self.status = replace(self.status, trouble=str(error))
                if not self._replica.complete:
                    self.failure = error
                self._publish_status()
                self._ended.wait(_RETRY_S)

    def _publish_status(self) -> None:
        if self._publish is not None:
            self._publish(self)

    def _rest(self, seconds: float) -> None:
        """Wait until the next poll or the end. Raises StoreError."""
        self._ended.wait(seconds)

    def _rest_s(self, busy_s: float) -> float:
        interval_s = self._following.poll_interval_ms / 1000
        if not self._replica.complete:
            return interval_s if self._stale else 0.0  # no answers yet: copy at full speed
        share = self._following.busy_share
        return max(interval_s - busy_s, busy_s * (1 - share) / share)
