"""A model's rows in a learner for whom not all of them fit: those that were asked for lately.

To the loop it is a replica: it follows the logs, is told of its own pushes, and has a table. But it
holds their tails alone (pserver.replica.partial_replica), and of the rows those that were pulled
and not dropped since. To these it adds what each entry says, in the log's order: a row that is here
is, bit for bit, what a full replica has that has come as far; pserver.replica.partial_replica
argues why. That a row does not exist is known as well: it is here as the row that never gained
anything. So what is not in the table is not known, and nothing else is.

Where a bucket's history broke, its rows stay as they were, as in a replica, until all of them were
looked up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.pserver.replica import Copied, Deleted, Folded, HistoryReset, PartialReplica, Stale
from headrace.pserver.rows import Deletions, RowTable

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.learner.inputs import RequiredRows
    from headrace.pserver import Shape, Store
    from headrace.pserver.replica import Change, EntryApplied
    from headrace.pserver.rows import EntryHeader, Places, RowDeltas

    Ids = npt.NDArray[np.uint64]

_ENTRIES_A_POLL = 64


class CachedReplica:
    """Some rows of a model, as of a version of each bucket."""

    def __init__(self, store: Store, shape: Shape, asked: RequiredRows, most_rows: int) -> None:
        """most_rows: see learner.loop.row_prefetcher, which keeps to it."""
        self.shape, self.asked, self.most_rows = shape, asked, most_rows
        self.table = RowTable(shape.width)
        self._lookup = PartialReplica(store, shape, self._watch)
        self._anew: set[int] = set()  # buckets whose rows here are of a history that broke
        self._own = False
        self._changes: list[Change] = []  # not yet returned

    @property
    def complete(self) -> bool:
        """Whether every bucket is followed, and what every example reads is here."""
        return self._lookup.complete and bool((self.table.find(self.asked.always) >= 0).all())

    @property
    def tail_bytes(self) -> int:
        """Memory of what the logs still hold."""
        return self._lookup.tail_bytes

    def poll(self, limit: int = _ENTRIES_A_POLL) -> list[Change]:
        """Take in up to `limit` new entries a bucket; return what changed, in order.

        Raises what the store raises beyond Unreachable.
        """
        stale = [each for each in self._lookup.poll(limit) if isinstance(each, Stale)]
        always = self.asked.always
        missing = always[self.table.find(always) < 0]
        if missing.shape[0]:
            self.pull(missing)
        self._renew()
        return [*self.changes(), *stale]

    def changes(self) -> list[Change]:
        """Return what changed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def pull(self, ids: Ids) -> None:
        """Look up rows that are not here, each once: what answers is here then.

        May take in entries beside. Raises what the store raises beyond Unreachable.
        """
        found = self._lookup.rows(ids)
        if found.failed:
            there = ~np.isin(self.shape.bucket_of(ids), list(found.failed))
            self.table.put(found.rows.chosen(there))
        else:
            self.table.put(found.rows)
        self._renew()

    def drop(self, places: Places) -> None:
        """Let go of the rows at these places."""
        keep = np.ones(len(self.table), np.bool_)
        keep[places] = False
        self.table.clear(places)
        self.table.compact(keep)

    def fold_own(
        self,
        bucket: int,
        version: int,
        nonce: bytes,
        previous_nonce: bytes,
        header: EntryHeader,
        gains: RowDeltas,
    ) -> bool:
        """Fold an entry that this process pushed, without reading it back.

        Only if it is exactly the next one. False: nothing was done, and `poll` brings it.
        """
        self._own = True
        try:
            return self._lookup.fold_own(bucket, version, nonce, previous_nonce, header, gains)
        finally:
            self._own = False

    def compact(self) -> None:
        """Nothing: rows go when there is no more room."""

    def _watch(self, news: EntryApplied | HistoryReset) -> None:
        if isinstance(news, HistoryReset):
            self._anew.add(news.bucket)
            return
        bucket, version, header, content = news
        if bucket in self._anew:
            return  # its rows are of another history
        here = self.table.find(content.ids) >= 0
        if isinstance(content, Deletions):
            known = content if here.all() else content.chosen(here)
            self.table.remove(known)
            self._changes.append(Deleted(bucket, version, header, known.ids, 0))
            return
        gains = content if here.all() else content.chosen(here)
        self.table.add(gains)
        if not self._own:
            self._changes.append(Folded(bucket, version, header, gains, 0))

    def _renew(self) -> None:
        """Look up again what is here of buckets whose history broke."""
        if not self._anew:
            return
        held = self.table.ids
        ids = held[np.isin(self.shape.bucket_of(held), list(self._anew))]
        found = self._lookup.rows(ids)
        buckets = self.shape.bucket_of(ids)
        for bucket in sorted(self._anew - set(found.failed)):
            of_bucket = np.flatnonzero(buckets == bucket)
            if not of_bucket.shape[0] and not self._begun(bucket):
                continue  # the next poll begins it
            self.table.put(found.rows.chosen(of_bucket))
            self._anew.discard(bucket)
            self._changes.append(Copied(bucket))

    def _begun(self, bucket: int) -> bool:
        try:
            self._lookup.position(bucket)
        except KeyError:
            return False
        return True
