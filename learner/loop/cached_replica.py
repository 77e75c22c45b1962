"""A replica of some rows of a model: those that recent batches needed.

The loop uses it like a full replica: it follows the logs, folds its learner's own pushes, and has a
table. But it keeps only the tails of the logs (pserver.replica.partial_replica), and only rows that
were pulled and not evicted since. It adds entries to these in the log's order. So a row in the
table equals, bit for bit, that of a full replica at the same version; partial_replica argues why. A
pulled row that the store lacks is in the table, too, without deltas. So a row is unknown only if it
is not in the table.

If a bucket's history broke, its rows keep their values, as in a replica, until all of them were
looked up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.pserver.replica.partial_replica import EntryApplied, HistoryReset, PartialReplica
from headrace.pserver.replica.replica import BucketRecopied, Change, Deleted, Folded, Stale
from headrace.pserver.rows.deltas import Deletions, EntryHeader, RowDeltas
from headrace.pserver.rows.table import Places, RowTable
from headrace.pserver.store import ENTRIES_A_POLL, BucketAnswer, Shape, Store

if TYPE_CHECKING:
    from headrace.learner.inputs.required_rows import RequiredRows


Ids = npt.NDArray[np.uint64]


class CachedReplica:
    """Some rows of a model, as of a version of each bucket."""

    def __init__(self, store: Store, shape: Shape, required: RequiredRows, most_rows: int) -> None:
        """most_rows: the bound that learner.loop.row_prefetcher enforces."""
        self.shape, self.required, self.most_rows = shape, required, most_rows
        self.table = RowTable(shape.width)
        self._lookup = PartialReplica(store, shape, self._watch)
        self._anew: set[int] = set()  # buckets whose history broke
        self._own = False
        self._changes: list[Change] = []  # not yet returned

    @property
    def complete(self) -> bool:
        """Whether every bucket is followed, and the rows that every example reads are present."""
        return self._lookup.complete and bool((self.table.find(self.required.always) >= 0).all())

    @property
    def tail_bytes(self) -> int:
        """Bytes of memory that the tails of the logs take."""
        return self._lookup.tail_bytes

    def poll(self, limit: int = ENTRIES_A_POLL) -> list[Change]:
        """Read up to `limit` new entries a bucket; return the changes, in order.

        Raises what the store raises beyond Unreachable.
        """
        stale = [each for each in self._lookup.poll(limit) if isinstance(each, Stale)]
        always = self.required.always
        missing = always[self.table.find(always) < 0]
        if missing.shape[0]:
            self.pull(missing)
        self._renew()
        return [*self.changes(), *stale]

    def changes(self) -> list[Change]:
        """Return the changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def pull(self, ids: Ids) -> None:
        """Look up missing rows, each once: those of buckets that answer are present then.

        It may also read entries. Raises what the store raises beyond Unreachable.
        """
        self.table.put(self._lookup.rows(ids).known(self.shape))
        self._renew()

    def drop(self, places: Places) -> None:
        """Evict the rows at these places."""
        keep = np.ones(len(self.table), np.bool_)
        keep[places] = False
        self.table.clear(places)
        self.table.compact(keep)

    def fold_own(self, answer: BucketAnswer, header: EntryHeader, deltas: RowDeltas) -> bool:
        """Fold an entry that this process pushed, without reading it back.

        Returns False if it is not exactly the next entry: `poll` will bring it.
        """
        self._own = True
        try:
            return self._lookup.fold_own(answer, header, deltas)
        finally:
            self._own = False

    def compact(self) -> None:
        """Do nothing: rows are evicted when there is no more room."""

    def _watch(self, news: EntryApplied | HistoryReset) -> None:
        if isinstance(news, HistoryReset):
            self._anew.add(news.bucket)
            return
        bucket, version, header, content = news
        if bucket in self._anew:
            return  # its rows belong to another history
        here = self.table.find(content.ids) >= 0
        if isinstance(content, Deletions):
            known = content if here.all() else content.chosen(here)
            self.table.remove(known)
            self._changes.append(Deleted(bucket, version, header, known.ids, 0))
            return
        deltas = content if here.all() else content.chosen(here)
        self.table.add(deltas)
        if not self._own:
            self._changes.append(Folded(bucket, version, header, deltas, 0))

    def _renew(self) -> None:
        """Look up the present rows of buckets whose history broke."""
        if not self._anew:
            return
        ids = self.table.ids
        ids = ids[np.isin(self.shape.bucket_of(ids), list(self._anew))]
        found = self._lookup.rows(ids)
        buckets = self.shape.bucket_of(ids)
        for bucket in sorted(self._anew - set(found.failed)):
            of_bucket = np.flatnonzero(buckets == bucket)
            if not of_bucket.shape[0] and not self._lookup.begun(bucket):
                continue  # the next poll begins it
            self.table.put(found.rows.chosen(of_bucket))
            self._anew.discard(bucket)
            self._changes.append(BucketRecopied(bucket))
