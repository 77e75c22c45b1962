"""Follows the logs for a row cache, and fetches missing rows while a request waits.

A request that misses rows waits for them, for at most `miss_deadline_ms` since it was queued. If
they are late, it is scored with initial values in their place, the answer counts them
(`defaulted_rows`), and the rows are cached for the next request. Rows in buckets that do not
respond are not waited for.

The thread that follows the logs also fetches, because both change the same rows. A waiting request
wakes it up, and it fetches the rows of all waiting requests together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.encoder import Encoded
from headrace.learner.inputs.required_rows import RequiredRows
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape, Store
from headrace.serving.replicas.follower import Follower, Following
from headrace.serving.replicas.row_cache import RowCache

Ids = npt.NDArray[np.uint64]

_MOST_ROWS_A_FETCH = 10_000
"""Rows of one fetch. A larger fetch would delay the logs."""


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """Size of a model's row cache, and the wait for missing rows."""

    most_rows: int
    """Besides the rows that every request reads."""
    miss_deadline_ms: int = 5
    """For all missing rows of a request. A round trip to a nearby server takes much less."""


class _Miss:
    """Rows that a request waits for."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.looked = threading.Event()


class CachingFollower(Follower):
    """Follows one model's logs with a row cache."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        required: RequiredRows,
        bounds: CacheBounds,
        following: Following,
        now_ms: Callable[[], int],
        arrived: Callable[[Iterable[int]], None],
        counted: Callable[[str, int], None],
    ) -> None:
        """`counted` takes an outcome (`hit`, `fetched`, `defaulted`) and a count of rows."""
        self._hot = RowCache(store, shape, required.always, bounds.most_rows)
        self._required, self._bounds, self._counted = required, bounds, counted
        self._misses: deque[_Miss] = deque()
        self._woken = threading.Condition()
        super().__init__(self._hot, following, now_ms, arrived)

    def reading(self, since_s: float | None = None) -> CachedRead:
        """Return the rows for one request. `since_s`: monotonic time at which it was queued."""
        began_s = time.monotonic() if since_s is None else since_s
        return CachedRead(self, self._required, began_s + self._bounds.miss_deadline_ms / 1000)

    def stop(self) -> None:
        """End the thread, and the waits of all requests."""
        self._ended.set()
        with self._woken:
            self._woken.notify_all()
        super().stop()

    def have(self, ids: Ids, deadline_s: float) -> tuple[RowTable, int]:
        """Return a table with these rows, and the count of rows that are missing at the deadline.

        ids: (n,), unique. deadline_s: monotonic time.
        """
        table, missing = self._present(ids)
        hits = ids.shape[0] - missing.shape[0]
        if not missing.shape[0]:
            self._counted("hit", hits)
            return table, 0
        failed = self._hot.failed
        worth = missing
        if failed:
            worth = missing[~np.isin(self._hot.shape.bucket_of(missing), list(failed))]
        if worth.shape[0]:
            miss = _Miss(worth)
            with self._woken:
                self._misses.append(miss)
                self._woken.notify()
            left_s = deadline_s - time.monotonic()
            if left_s > 0:
                miss.looked.wait(left_s)
                table, missing = self._present(ids)
        defaulted = missing.shape[0]
        self._counted("hit", hits)
        self._counted("fetched", max(ids.shape[0] - hits - defaulted, 0))
        self._counted("defaulted", defaulted)
        return table, defaulted

    def _present(self, ids: Ids) -> tuple[RowTable, Ids]:
        """Return the table, and the ids that are not in it."""
        table, read = self._hot.cached
        places = table.find(ids)
        here = places >= 0
        read[places[here]] = True
        return table, ids[~here]

    def _rest(self, seconds: float) -> None:
        """Fetch missing rows until the next poll."""
        until_s = time.monotonic() + seconds
        while not self._ended.is_set():
            with self._woken:
                left_s = until_s - time.monotonic()
                self._woken.wait_for(lambda: self._misses or self._ended.is_set(), max(left_s, 0))
                waiting = self._next()
            if waiting:
                self._fetch(waiting)
            if time.monotonic() >= until_s:
                return

    def _next(self) -> list[_Miss]:
        waiting: list[_Miss] = []
        rows = 0
        while self._misses and rows < _MOST_ROWS_A_FETCH:
            waiting.append(self._misses.popleft())
            rows += waiting[-1].ids.shape[0]
        return waiting

    def _fetch(self, waiting: list[_Miss]) -> None:
        try:
            self._hot.fetch(np.unique(np.concatenate([each.ids for each in waiting])))
        finally:
            for each in waiting:
                each.looked.set()


class CachedRead:
    """The rows for one request; `defaulted` counts those that did not arrive in time."""

    def __init__(self, rows: CachingFollower, required: RequiredRows, deadline_s: float) -> None:
        self._rows, self._required, self._deadline_s = rows, required, deadline_s
        self.defaulted = 0

    def table_for(self, features: Encoded, event_ms: npt.NDArray[np.int64]) -> RowTable:
        """Return a table with the rows."""
        required, deadline_s = self._required, self._deadline_s
        table, self.defaulted = self._rows.have(required.of_features(features), deadline_s)
        ids = required.of_statistics(table, features, event_ms)
        if ids.shape[0]:
            table, more = self._rows.have(ids, deadline_s)
            self.defaulted += more
        return table
