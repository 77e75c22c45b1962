"""Measures freshness: the delay from a click's append to Kafka to its arrival in the replica.

Every entry of a bucket's log has the offsets up to which its sources were read when it was pushed.
In every round, the entry of one bucket also lists the clicks learned. A click changes rows in many
buckets, so it has arrived only when *every* bucket has an entry that covers its offset. Each source
therefore has a frontier, the smallest offset over all buckets, and clicks wait until the frontier
passes their offset.

A click counts once. A source may be read again, after another learner took over or a push was
refused. Its offsets are then listed again, but they wait already or are behind the frontier. The
entry that lists a click is its bucket's first entry to cover the click, so the frontier cannot pass
a click that was never listed. A click in a copied bucket never counts, because it may have been
learned long before this server started. Neither does a click from before the first copy of all
buckets was complete: the time that the copy took is not freshness.

Ages are different: the age of the newest event that a bucket learned from. They grow while no
events arrive, because a server cannot tell a pause of events from a failure.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.pserver.rows.deltas import EntryHeader

RECENT = 10_000
"""Samples behind the percentiles: at 40 clicks a second, the last four minutes."""

MOST_WAITING = 100_000
"""Largest number of waiting clicks per source. The frontier stops while a shard is down."""


class Ages(NamedTuple):
    """Append time, in ms, of the newest event in the freshest and the stalest bucket; or None."""

    newest_append_ms: int | None
    oldest_append_ms: int | None


UNKNOWN_AGES = Ages(None, None)


class FreshnessSummary(msgspec.Struct, frozen=True):
    """Delay from a click's append to Kafka to its arrival in this replica, for recent clicks."""

    p50_ms: float | None
    p99_ms: float | None
    count: int
    """Clicks since the replica was complete."""


NO_FRESHNESS = FreshnessSummary(None, None, 0)


class _Frontier:
    """One source: the offset that each bucket has reached, and the waiting clicks."""

    def __init__(self, buckets: int) -> None:
        self.stops = np.zeros(buckets, np.int64)
        self.passed = 0
        """The largest frontier so far: clicks below it were counted."""
        self.waiting: dict[int, list[int]] = {}
        """Append times of clicks by their offset."""
        self._count = 0

    def take(self, clicks: Iterable[tuple[int, int]]) -> None:
        told: dict[int, list[int]] = {}
        for offset, append_ms in clicks:
            if offset >= self.passed and offset not in self.waiting:
                told.setdefault(offset, []).append(append_ms)
        for offset, appended in told.items():
            # when full, keep the oldest clicks: dropping them would improve the figure
            if self._count + len(appended) <= MOST_WAITING:
                self.waiting[offset] = appended
                self._count += len(appended)

    def arrived(self) -> list[int]:
        least = int(self.stops.min())
        if least <= self.passed:
            return []
        self.passed = least
        here = [offset for offset in self.waiting if offset < least]
        appended = [each for offset in here for each in self.waiting.pop(offset)]
        self._count -= len(appended)
        return appended


class FreshnessTracker:
    """Tracks freshness from the headers of folded entries. Pure: the caller passes the time."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._frontiers: dict[str, _Frontier] = {}
        self._append_ms = np.zeros(buckets, np.int64)
        self._recent: npt.NDArray[np.float64] = np.zeros(RECENT)
        self._count = 0
        self._since_ms = 0

    def began(self, now_ms: int) -> None:
        """Record that the first copy is complete: older clicks give no samples."""
        self._since_ms = now_ms

    def copied(self, bucket: int, append_ms: int, stops: Mapping[str, int]) -> None:
        """Record a bucket's copy, learned up to these offsets. Its clicks give no samples."""
        for frontier in self._frontiers.values():
            frontier.stops[bucket] = 0  # the copy may be of another history
        self._append_ms[bucket] = append_ms
        for source, stop in stops.items():
            self._frontier(source).stops[bucket] = stop

    def folded(self, bucket: int, header: EntryHeader) -> None:
        """Record a folded entry: its clicks wait, and the frontiers advance."""
        self._append_ms[bucket] = max(int(self._append_ms[bucket]), header.append_ms)
        for reached in header.reached:
            frontier = self._frontier(reached.source)
            frontier.take(reached.clicks)
            frontier.stops[bucket] = max(int(frontier.stops[bucket]), reached.stop)

    def arrived(self, now_ms: int) -> list[int]:
        """Return and record the freshness, in ms, of every click that has arrived by now."""
        samples = [
            max(0, now_ms - append_ms)
            for frontier in self._frontiers.values()
            for append_ms in frontier.arrived()
            if append_ms >= self._since_ms
        ]
        for sample in samples:
            self._recent[self._count % RECENT] = sample
            self._count += 1
        return samples

    def summary(self) -> FreshnessSummary:
        """Return percentiles of the recent samples."""
        if not self._count:
            return NO_FRESHNESS
        p50, p99 = np.percentile(self._recent[: min(self._count, RECENT)], (50, 99))
        return FreshnessSummary(float(p50), float(p99), self._count)

    def ages(self) -> Ages:
        """Return the append times of the freshest and the stalest bucket."""
        newest, oldest = int(self._append_ms.max()), int(self._append_ms.min())
        return Ages(newest or None, oldest or None)

    def _frontier(self, source: str) -> _Frontier:
        frontier = self._frontiers.get(source)
        if frontier is None:
            frontier = self._frontiers[source] = _Frontier(self._buckets)
        return frontier
