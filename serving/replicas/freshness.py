"""How fresh a replica is: the time from a click's append to Kafka to its arrival here.

Every entry of a bucket's log says how far its sources had been read when it was pushed, and one
bucket's entry of a round also names the clicks learned in it. One click changes rows in many
buckets, so it has arrived only when *every* bucket has an entry that covers its offset. So for each
source there is a frontier, the least stop over all buckets, and clicks that wait for it to pass
their offsets.

A click counts once: whoever reads a source again (another learner took over, a push was refused)
names the same offsets again, and these either wait already or lie behind the frontier. An entry
that names a click is the first of its bucket to cover it, so the frontier cannot have passed a
click that was never named. A click whose entry was copied rather than followed never counts: it may
have been learned long before this server was there to see it.

Ages are another matter: how old the newest event is that a bucket has learned from. They grow while
no event comes, for a server cannot know that there was none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from headrace.pserver.rows import EntryHeader

RECENT = 10_000
"""Samples that percentiles are taken of: at 40 clicks a second the last four minutes."""

MOST_WAITING = 100_000
"""Clicks of one source that may wait: the frontier stands still while a shard is away."""


class Ages(NamedTuple):
    """Append times that the buckets' information has reached, in ms; None if none is known."""

    newest_append_ms: int | None
    oldest_append_ms: int | None


@dataclass(frozen=True, slots=True)
class FreshnessSummary:
    """FreshnessTracker over the recent samples; None where there are none."""

    p50_ms: float | None
    p99_ms: float | None
    count: int
    """Clicks that arrived since the beginning."""


class _Frontier:
    """One source: how far each bucket has it, and the clicks that wait."""

    def __init__(self, buckets: int) -> None:
        self.stops = np.zeros(buckets, np.int64)
        self.passed = 0
        """The furthest that the least stop ever was: clicks below have been counted."""
        self.waiting: dict[int, list[int]] = {}
        """Append times of clicks by their offset."""
        self._count = 0

    def take(self, clicks: Iterable[tuple[int, int]]) -> None:
        told: dict[int, list[int]] = {}
        for offset, append_ms in clicks:
            if offset >= self.passed and offset not in self.waiting:
                told.setdefault(offset, []).append(append_ms)
        for offset, appended in told.items():
            # when full, those who have waited longest stay: dropping them would flatter the figure
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
    """Follows the headers of entries as they are folded. Pure: the clock is handed in."""

    def __init__(self, buckets: int) -> None:
        self._buckets = buckets
        self._frontiers: dict[str, _Frontier] = {}
        self._append_ms = np.zeros(buckets, np.int64)
        self._recent: npt.NDArray[np.float64] = np.zeros(RECENT)
        self._count = 0

    def copied(self, bucket: int, append_ms: int, stops: Mapping[str, int]) -> None:
        """A bucket was copied, learned up to these offsets: take no samples from what it held."""
        for frontier in self._frontiers.values():
            frontier.stops[bucket] = 0  # history may have been rewritten: what was reached is gone
        self._append_ms[bucket] = append_ms
        for source, stop in stops.items():
            self._frontier(source).stops[bucket] = stop

    def folded(self, bucket: int, header: EntryHeader) -> None:
        """An entry of a bucket's log was folded: move frontiers, and let its clicks wait."""
        for reached in header.reached:
            self._frontier(reached.source).take(reached.clicks)
        self._reach(bucket, header)

    def arrived(self, now_ms: int) -> list[int]:
        """Return the freshness in ms of every click that has arrived by now, and remember it."""
        samples = [
            max(0, now_ms - append_ms)
            for frontier in self._frontiers.values()
            for append_ms in frontier.arrived()
        ]
        for sample in samples:
            self._recent[self._count % RECENT] = sample
            self._count += 1
        return samples

    def summary(self) -> FreshnessSummary:
        """Return the percentiles of the recent samples."""
        if not self._count:
            return FreshnessSummary(None, None, 0)
        p50, p99 = np.percentile(self._recent[: min(self._count, RECENT)], (50, 99))
        return FreshnessSummary(float(p50), float(p99), self._count)

    def ages(self) -> Ages:
        """Return the append times that the freshest and the stalest bucket have reached."""
        newest, oldest = int(self._append_ms.max()), int(self._append_ms.min())
        return Ages(newest or None, oldest or None)

    def _reach(self, bucket: int, header: EntryHeader) -> None:
        self._append_ms[bucket] = max(int(self._append_ms[bucket]), header.append_ms)
        for reached in header.reached:
            stops = self._frontier(reached.source).stops
            stops[bucket] = max(int(stops[bucket]), reached.stop)

    def _frontier(self, source: str) -> _Frontier:
        frontier = self._frontiers.get(source)
        if frontier is None:
            frontier = self._frontiers[source] = _Frontier(self._buckets)
        return frontier
