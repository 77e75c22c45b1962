"""Caches the most recently used rows of a model, evicts the others, and follows the logs.

The cache follows the tails of the logs (`pserver.replica.PartialReplica`) and folds every entry
into the cached rows, in log order. A cached row is therefore bit-identical to the row of a full
replica at the same version. Missing rows are looked up. A row that does not exist is cached too, as
a row with initial values.

Eviction is CLOCK with a single sweep. When the cache is full, it evicts rows that were not read
since the last eviction, the oldest first, until a quarter is free. The remaining rows move to a new
table, which then replaces the old one, so a concurrent reader sees a consistent table. Rows that
every forward pass reads (`always`) are never evicted.

If a bucket's history breaks, its rows stay readable until its tail starts again, and are then
evicted.

One thread follows and fetches. Other threads may read the table and mark rows as read.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import StoreError
from headrace.pserver.replica.log_chain import LogPosition
from headrace.pserver.replica.partial_replica import EntryApplied, HistoryReset, PartialReplica
from headrace.pserver.replica.replica import BucketRecopied, Change, Folded, Stale
from headrace.pserver.rows.deltas import Deletions
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape, Store

Ids = npt.NDArray[np.uint64]

_FREED_SHARE = 0.25
"""Share of the cache that an eviction frees: large enough to pay for moving the rest."""
_ROWS_A_MOVE = 1 << 14
"""Rows per copy. numpy holds the interpreter lock meanwhile, and requests wait for it."""
LEAST_ROWS = 1_000
"""A request may read as many rows. In a smaller cache they would evict each other."""


class CachedRows(NamedTuple):
    """The cached rows, and the reads since the last eviction."""

    table: RowTable
    read: npt.NDArray[np.bool_]
    """(most,) by slot: whether the row was read since the last eviction. Any thread may set it."""


class RowCache:
    """A bounded cache of rows. One thread may change it, others may read."""

    def __init__(self, store: Store, shape: Shape, always: Ids, most_rows: int) -> None:
        """always: (n,) unique ids of rows that are never evicted."""
        self.shape = shape
        self._most = max(most_rows, LEAST_ROWS) + always.shape[0]
        self._always = always
        self._lookup = PartialReplica(store, shape, self._watch)
        self._anew = set(range(shape.buckets))  # buckets whose tail has not started yet
        self._lacking = always
        self._was_complete = False
        self._changes: list[Change] = []
        self.cached = self._empty()
        self.failed: Mapping[int, StoreError] = {}
        """Buckets that failed to respond to the last request."""

    @property
    def table(self) -> RowTable:
        """The cached rows. Read only."""
        return self.cached.table

    @property
    def complete(self) -> bool:
        """Whether all buckets were once readable and all `always` rows were cached.

        It stays true from then on: the cache can answer, whatever happens to the store.
        """
        self._was_complete |= not self._anew and not self._lacking.shape[0]
        return self._was_complete

    @property
    def buckets(self) -> list[int]:
        """All buckets of the model."""
        return list(range(self.shape.buckets))

    def copied(self, bucket: int) -> bool:
        """Whether rows of a bucket can be looked up."""
        return bucket not in self._anew

    def position(self, bucket: int) -> LogPosition:
        """Return a bucket's position in its log. Raises KeyError before its tail has started."""
        return self._lookup.position(bucket)

    def poll(self, limit: int) -> list[Change]:
        """Fold up to `limit` new entries per bucket; return the changes in order.

        Raises the store's errors except Unreachable.
        """
        stale = [each for each in self._lookup.poll(limit) if isinstance(each, Stale)]
        self.failed = {each.bucket: each.error for each in stale}
        self._settle()
        if self._lacking.shape[0] and not self._anew:
            self.fetch(self._lacking)
        changes, self._changes = self._changes, []
        return [*changes, *stale]

    def fetch(self, ids: Ids) -> None:
        """Look up missing rows, as many as fit. ids: unique.

        Buckets that do not respond are added to `failed`. Raises the store's errors except
        Unreachable.
        """
        wanted = ids[self.table.find(ids) < 0][: self._most // 2]
        found = self._lookup.rows(wanted)
        self.failed = {**self.failed, **found.failed}
        self._settle()
        rows = found.known(self.shape)
        if len(self.table) + rows.ids.shape[0] > self._most:
            self._make_room(rows.ids.shape[0])
        self._add(rows)
        if self._lacking.shape[0]:
            self._lacking = self._lacking[self.table.find(self._lacking) < 0]

    def compact(self) -> None:
        """Do nothing: eviction frees memory."""

    def _watch(self, news: EntryApplied | HistoryReset) -> None:
        if isinstance(news, HistoryReset):
            self._anew.add(news.bucket)
            return
        bucket, version, header, content = news
        if bucket in self._anew:
            return  # its cached rows are of the old history, and are evicted once the tail starts
        here = self.table.find(content.ids) >= 0
        if isinstance(content, Deletions):
            self.table.remove(content.chosen(here))
        else:
            self.table.add(content if here.all() else content.chosen(here))
            self._changes.append(Folded(bucket, version, header, content, 0))

    def _add(self, rows: FoldedRows) -> None:
        """Add missing rows. The values come before the index: a reader finds complete rows only."""
        columns, first = self.table.columns, len(self.table)
        for name, column in rows._asdict().items():
            getattr(columns, name)[first : first + rows.ids.shape[0]] = column
        self.table.find_or_add(rows.ids)  # assigns the next slots: those just written

    def _settle(self) -> None:
        """Evict the rows of buckets whose tails have started again."""
        begun = [bucket for bucket in self._anew if self._lookup.begun(bucket)]
        if not begun:
            return
        self._anew.difference_update(begun)
        self._changes += [BucketRecopied(bucket) for bucket in begun]
        gone = np.isin(self.shape.bucket_of(self.table.ids), begun)
        if gone.any():
            ids = self.table.ids[gone]
            self._move(np.flatnonzero(~gone))
            self._lacking = np.union1d(self._lacking, ids[np.isin(ids, self._always)])

    def _make_room(self, more: int) -> None:
        count = len(self.table)
        read = self.cached.read[:count].copy()
        stays = np.zeros(count, np.bool_)
        always = self.table.find(self._always)
        stays[always[always >= 0]] = True
        left = max(int(self._most * (1 - _FREED_SHARE)) - more, 0)
        # `ids` is in order of insertion: the newest rows are last
        for some in (read & ~stays, ~read & ~stays):
            free = left - int(np.count_nonzero(stays))
            newest = np.flatnonzero(some)
            stays[newest[max(newest.shape[0] - max(free, 0), 0) :]] = True
        self._move(np.flatnonzero(stays))

    def _move(self, places: npt.NDArray[np.int64]) -> None:
        """Keep only the rows in these slots, in a new table."""
        new = self._empty()
        for start in range(0, places.shape[0], _ROWS_A_MOVE):
            new.table.put(self.table.take(places[start : start + _ROWS_A_MOVE]))
        self.cached = new

    def _empty(self) -> CachedRows:
        table = RowTable(self.shape.width)
        table.reserve(self._most)
        return CachedRows(table, np.zeros(self._most, np.bool_))
