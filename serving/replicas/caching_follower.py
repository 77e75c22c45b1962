"""A follower for whom not all rows fit: hot rows are here, the others are fetched while one waits.

A request that names rows which are not here waits for them, for a few milliseconds and no longer,
those included that it waited for its turn: then it is answered as if they did not exist, the answer
says how many these were, and they are here for the next one. Rows of buckets that do not answer are
not waited for at all.

The thread that follows the logs also fetches, since both change the same rows: whoever waits wakes
it. What several requests wait for is fetched together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.serving.replicas.follower import Follower
from headrace.serving.replicas.row_cache import RowCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from headrace.ingest.features import Encoded
    from headrace.learner.inputs import RequiredRows
    from headrace.pserver import Shape, Store
    from headrace.pserver.rows import RowTable
    from headrace.serving.replicas.follower import Following

    Ids = npt.NDArray[np.uint64]

_MOST_ROWS_A_FETCH = 10_000
"""What is fetched together: more would keep the logs waiting."""


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """How many of a model's rows a server holds, and how long it waits for the others."""

    most_rows: int
    """Beside those that every request reads."""
    miss_deadline_ms: int = 5
    """For all rows of a request that are not here; a round trip to a near server is well below."""


class _Miss:
    """Rows that somebody waits for."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.looked = threading.Event()


class CachingFollower(Follower):
    """Follows one model's logs, and has the rows that are asked for."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        asked: RequiredRows,
        bounds: CacheBounds,
        following: Following,
        now_ms: Callable[[], int],
        arrived: Callable[[Iterable[int]], None],
        counted: Callable[[str, int], None],
    ) -> None:
        """`counted` is told how many rows were a `hit`, `fetched` or `defaulted`."""
        self._hot = RowCache(store, shape, asked.always, bounds.most_rows)
        self._asked, self._bounds, self._counted = asked, bounds, counted
        self._misses: deque[_Miss] = deque()
        self._woken = threading.Condition()
        super().__init__(self._hot, following, now_ms, arrived)

    @property
    def tail_bytes(self) -> int:
        """Memory of what the logs still hold."""
        return self._hot.tail_bytes

    def reading(self, since_s: float | None = None) -> CachedRead:
        """Return what one request reads from; `since_s` is when it began to wait."""
        began_s = time.monotonic() if since_s is None else since_s
        return CachedRead(self, self._asked, began_s + self._bounds.miss_deadline_ms / 1000)

    def stop(self) -> None:
        """End the thread; nobody is waited for any more."""
        self._ended.set()
        with self._woken:
            self._woken.notify_all()
        super().stop()

    def have(self, ids: Ids, deadline_s: float) -> tuple[RowTable, int]:
        """Return a table with these rows, as far as they could be had; and how many could not.

        ids: (n,), each once. deadline_s: of the clock that never goes back.
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
        """Return the table, and which of the ids are not in it."""
        table, read = self._hot.held
        places = table.find(ids)
        here = places >= 0
        read[places[here]] = True
        return table, ids[~here]

    def _rest(self, seconds: float) -> None:
        """Fetch what is asked for until it is time to poll again."""
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
    """What one request reads from; it knows how many of its rows were not to be had."""

    def __init__(self, rows: CachingFollower, asked: RequiredRows, deadline_s: float) -> None:
        self._rows, self._asked, self._deadline_s = rows, asked, deadline_s
        self.defaulted = 0

    def table_for(self, features: Encoded, event_ms: npt.NDArray[np.int64]) -> RowTable:
        """Return a table that has the rows."""
        asked, deadline_s = self._asked, self._deadline_s
        table, self.defaulted = self._rows.have(asked.of_features(features), deadline_s)
        ids = asked.of_statistics(table, features, event_ms)
        if ids.shape[0]:
            table, more = self._rows.have(ids, deadline_s)
            self.defaulted += more
        return table
