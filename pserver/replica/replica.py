"""A replica: a copy of a model's rows in this process that follows the logs.

Learners, servers and keepers each hold one. A replica adds the entries of a bucket's log to its
rows in the log's order. Float additions in one order give one result, so all replicas at one
version are equal bit for bit, and a checksum can prove it. An entry of deletions removes the rows
that were not seen since it was decided, at the same place of the log in every replica.

To copy a bucket: read its complete log; then its rows, each with the version up to which it is
folded; add to each row the entries beyond its version; then follow the log at least to the version
that the bucket had after its rows were read. Only then is the copy complete. Between any two
chunks of rows, the log is read further, because a keeper trims it meanwhile: a copy that takes
longer than the log is kept would otherwise never be complete. The complete copy replaces the
bucket's rows in the table, which stayed visible until then. A row that was not found was never
folded, so all its entries are in the log that was read; or it was removed, and then the log has all
entries beyond its removal, if not the removal itself.

A row that was folded beyond the log read so far may be of a history that a failover took back while
the rows were read, and that others have rewritten since. Such rows are read again until all are of
versions that the log had reached before. The following poll shows whether they are still history.

To follow a bucket: each poll brings its head and the entries beyond the replica's position. They
form a chain, in which each names the nonce of the one before. A gap (entries trimmed before they
were read), a link that does not fit, and a head that is behind the replica or has another nonce at
its version (a failover rewrote history) all mean: copy the bucket again.

Not safe for use from several threads, but others may read the table while it follows
(`pserver.rows.table` says why).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.replica.log_chain import (
    BrokenHistory,
    LogPosition,
    advanced,
    chain,
    log_of,
    unpacked,
)
from headrace.pserver.rows.deltas import Deletions, EntryHeader, RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows, StoredRows
from headrace.pserver.rows.table import Places, RowTable
from headrace.pserver.store import ENTRIES_A_POLL, BucketAnswer, Entry, PollResult, Shape, Store

_COPIES_A_POLL = 8
"""Buckets copied in one poll: with more, buckets that are followed already would wait too long."""


class Folded(NamedTuple):
    """An entry was added to the rows of a bucket."""

    bucket: int
    version: int
    header: EntryHeader
    deltas: RowDeltas
    size_bytes: int
    """Bytes of the entry in the log."""


class BucketRecopied(NamedTuple):
    """A bucket was copied again: any of its rows may have changed."""

    bucket: int


class Stale(NamedTuple):
    """A bucket could not be followed or copied now; its rows in the replica stay as they were."""

    bucket: int
    error: StoreError


class Deleted(NamedTuple):
    """An entry of deletions was applied to the rows of a bucket."""

    bucket: int
    version: int
    header: EntryHeader
    ids: npt.NDArray[np.uint64]
    """Ids in the entry; rows seen since still exist."""
    size_bytes: int
    """Bytes of the entry in the log."""


Change = Folded | Deleted | BucketRecopied | Stale


class Replica:
    """All rows of a model, or of some of its buckets, at one version of each bucket."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        table: RowTable | None = None,
        buckets: Iterable[int] | None = None,
    ) -> None:
        """Follow `buckets` (None for all) into `table` (None for a new one)."""
        self.shape = shape
        self.table = RowTable(shape.width) if table is None else table
        self._store = store
        self._positions: dict[int, LogPosition | None] = {}  # None: never copied
        self._broken: dict[int, None] = {}  # to be copied, longest waiting first
        self._changes: list[Change] = []  # not yet returned
        self.follow(range(shape.buckets) if buckets is None else buckets)

    @property
    def complete(self) -> bool:
        """Whether every followed bucket was copied once."""
        return None not in self._positions.values()

    @property
    def buckets(self) -> list[int]:
        """The followed buckets, ascending."""
        return sorted(self._positions)

    def follow(self, buckets: Iterable[int]) -> None:
        """Follow these buckets from now on, and no others; the rows of the others are cleared."""
        wanted = set(buckets)
        for bucket in self._positions.keys() - wanted:
            if self._positions.pop(bucket) is not None:
                self.table.clear(self.places(bucket))
            self._broken.pop(bucket, None)
        for bucket in sorted(wanted - self._positions.keys()):
            self._positions[bucket] = None
            self._broken[bucket] = None

    def copied(self, bucket: int) -> bool:
        """Whether the bucket was copied once and has a position."""
        return self._positions.get(bucket) is not None

    def reached(self, bucket: int) -> LogPosition | None:
        """Return the position of a bucket; None before it was copied once."""
        return self._positions.get(bucket)

    def position(self, bucket: int) -> LogPosition:
        """Return the position of a bucket. Raises KeyError before it was copied once."""
        position = self._positions.get(bucket)
        if position is None:
            raise KeyError(f"bucket {bucket} is not copied yet")
        return position

    def poll(self, limit: int = ENTRIES_A_POLL) -> list[Change]:
        """Read new entries, up to `limit` a bucket; return the changes, in order.

        Raises every StoreError but Unreachable; the next call then returns the changes before it.
        """
        self._follow_all(limit)
        for bucket in list(self._broken)[:_COPIES_A_POLL]:
            try:
                self._copy(bucket, limit)
            except (BrokenHistory, Unreachable) as error:
                known = error if isinstance(error, Unreachable) else StoreError(str(error))
                self._changes.append(Stale(bucket, known))
                self._broken[bucket] = self._broken.pop(bucket)  # after those that already wait
            else:
                self._changes.append(BucketRecopied(bucket))
                del self._broken[bucket]
        changes, self._changes = self._changes, []
        return changes

    def fold_own(self, answer: BucketAnswer, header: EntryHeader, deltas: RowDeltas) -> bool:
        """Fold an entry that this process pushed, without reading it back.

        answer: to the push. Only if it is exactly the next entry. False: nothing was done, and
        `poll` brings it.
        """
        bucket, version = answer.bucket, answer.version
        position = self._positions.get(bucket)
        if position is None or bucket in self._broken:
            return False
        if not position.precedes(version, answer.previous):
            return False
        self.table.add(deltas)
        self._positions[bucket] = advanced(position, version, answer.nonce, header)
        return True

    def compact(self, keep: npt.NDArray[np.bool_] | None = None) -> Places | None:
        """Free the memory of removed rows, if they are many.

        `keep` and the result are those of RowTable.compact; None: nothing was done. To be called by
        the one class that remembers places of the table, and by no other.
        """
        return self.table.compact(keep) if self.table.sparse else None

    def places(self, bucket: int) -> Places:
        """Return the places in the table of all rows of a bucket, in no particular order."""
        return np.flatnonzero(self.shape.bucket_of(self.table.ids) == bucket)

    def checksum(self, bucket: int) -> str:
        """Return a digest of the bucket's rows, equal in all replicas at one version.

        Rows that equal absent rows do not count.
        """
        return self.table.take(self.places(bucket)).checksum()

    def _follow_all(self, limit: int) -> None:
        after = {
            bucket: position.version
            for bucket, position in self._positions.items()
            if position is not None and bucket not in self._broken
        }
        if not after:
            return
        for bucket, polled in zip(after, self._store.poll(after, limit), strict=True):
            if isinstance(polled, Unreachable):
                self._changes.append(Stale(bucket, polled))
                continue
            try:
                self._follow_one(bucket, polled)
            except BrokenHistory:
                self._broken[bucket] = None

    def _follow_one(self, bucket: int, polled: PollResult) -> None:
        position = self.position(bucket)
        for entry in chain(position.version, position.nonce, polled):
            header, content = unpacked(self.shape, bucket, entry)
            change: Folded | Deleted
            if isinstance(content, Deletions):
                self.table.remove(content)
                change = Deleted(bucket, entry.version, header, content.ids, len(entry.blob))
            else:
                self.table.add(content)
                change = Folded(bucket, entry.version, header, content, len(entry.blob))
            position = advanced(position, entry.version, entry.nonce, header)
            self._positions[bucket] = position
            self._changes.append(change)

    def _copy(self, bucket: int, limit: int) -> None:
        """Copy a bucket. Raises BrokenHistory, Unreachable, and then leaves the table as it was."""
        start = self._poll_one(bucket, 0, limit)
        log = list(log_of(start))
        head = log[-1] if log else start
        log += self._entries_after(bucket, head, limit, start.version)
        head = log[-1] if log else start
        copy = _BucketCopy(self.shape.width, LogPosition(head.version, head.nonce, 0, 0, {}))
        for chunk in self._store.rows(bucket):
            if chunk.trimmed < start.trimmed:
                raise BrokenHistory(f"bucket {bucket} went back to entries that were trimmed")
            copy.put(chunk.rows, chunk.versions, head.version)
            # rows may take longer than a keeper leaves entries in the log
            log += self._entries_after(bucket, head, limit)
            head = log[-1] if log else start
        for entry in log:
            copy.add(entry, *unpacked(self.shape, bucket, entry))
        self._follow_up(bucket, copy, limit)
        while (newer := copy.unproven()).shape[0]:
            known = copy.position.version
            [found] = self._store.look({bucket: newer}, {bucket: known}, limit)
            if isinstance(found, Unreachable):
                try:
                    raise found
                finally:
                    del found  # else the error keeps this frame, and with it the copy
            if found.polled.trimmed < start.trimmed:
                raise BrokenHistory(f"bucket {bucket} went back to entries that were trimmed")
            copy.put_again(newer, found.rows, known)
            self._follow_up(bucket, copy, limit)
        self._swap(bucket, copy)

    def _entries_after(
        self, bucket: int, head: Entry | PollResult, limit: int, goal: int | None = None
    ) -> list[Entry]:
        """Return the log's entries beyond `head`, up to `goal`; None: to the bucket's version now.

        Raises BrokenHistory, Unreachable.
        """
        version, nonce = head.version, head.nonce
        found: list[Entry] = []
        while goal is None or version < goal:
            polled = self._poll_one(bucket, version, limit)
            goal = polled.version if goal is None else goal
            more = chain(version, nonce, polled)
            if not more and version < goal:
                # it went back to exactly the entries read: no more will come
                raise BrokenHistory(f"bucket {bucket} went back while its log was read")
            found += more
            if more:
                version, nonce = more[-1].version, more[-1].nonce
        return found

    def _follow_up(self, bucket: int, copy: _BucketCopy, limit: int) -> None:
        """Follow at least to the head that the bucket had after its rows were read."""
        goal = None
        while goal is None or copy.position.version < goal:
            position = copy.position
            polled = self._poll_one(bucket, position.version, limit)
            if goal is None:
                goal = max(polled.version, copy.newest)
            for entry in chain(position.version, position.nonce, polled):
                copy.add(entry, *unpacked(self.shape, bucket, entry))
            if copy.position is position and position.version < goal:
                raise BrokenHistory(f"bucket {bucket}: rows are newer than the log")

    def _swap(self, bucket: int, copy: _BucketCopy) -> None:
        if self.copied(bucket):
            old = self.places(bucket)
            gone = copy.table.find(self.table.columns.ids[old]) < 0
            self.table.clear(old[gone])
        self.table.put(copy.table.everything())
        self._positions[bucket] = copy.position

    def _poll_one(self, bucket: int, after: int, limit: int) -> PollResult:
        [polled] = self._store.poll({bucket: after}, limit)
        if isinstance(polled, Unreachable):
            try:
                raise polled
            finally:
                del polled  # else the error keeps this frame and its callers' frames
        return polled


class _BucketCopy:
    """A bucket while it is copied: rows of different versions, until the log brings all to one."""

    def __init__(self, width: int, position: LogPosition) -> None:
        self.table = RowTable(width)
        self.versions = np.zeros(self.table.capacity, np.uint64)  # up to which each place is folded
        self._unproven = np.zeros(self.table.capacity, np.bool_)
        self.newest = 0
        """Greatest version of any row as it was read."""
        self.position = position
        self._entries: list[tuple[int, RowDeltas | Deletions]] = []

    def unproven(self) -> npt.NDArray[np.uint64]:
        """Return the ids of rows that were read beyond the log as it was known then."""
        return self.table.ids[self._unproven[: len(self.table)]]

    def put_again(self, ids: npt.NDArray[np.uint64], stored: StoredRows, known: int) -> None:
        """Put rows that were read again, or not found again, and add the entries that they lack."""
        places = self.table.find(ids)
        self.table.clear(places)
        self.versions[places] = 0
        self._unproven[places] = False
        self.put(stored.rows, stored.versions, known)
        for version, content in self._entries:
            self._apply(version, content.chosen(np.isin(content.ids, ids)))

    def put(self, rows: FoldedRows, versions: npt.NDArray[np.uint64], known: int) -> None:
        """Put rows; of a row read twice, the newer one.

        known: the version that the log had reached before they were read.
        """
        places = self.table.find_or_add(rows.ids)
        self._grow()
        newer = versions >= self.versions[places]
        if newer.all():
            self.table.put(rows)
        else:
            self.table.put(rows.chosen(newer))
        self.versions[places[newer]] = versions[newer]
        self._unproven[places[newer]] = versions[newer] > known
        self.newest = max(self.newest, int(versions.max(initial=0)))

    def add(self, entry: Entry, header: EntryHeader, content: RowDeltas | Deletions) -> None:
        """Add an entry to the rows that are not folded up to it, or delete them."""
        self._apply(entry.version, content)
        self._entries.append((entry.version, content))
        self.position = advanced(self.position, entry.version, entry.nonce, header)

    def _apply(self, version: int, content: RowDeltas | Deletions) -> None:
        if isinstance(content, Deletions):
            places = self.table.find(content.ids)
            lacking = (places >= 0) & (self.versions[places] < version)
            self.table.remove(content.chosen(lacking))
        else:
            places = self.table.find_or_add(content.ids)
            self._grow()
            lacking = self.versions[places] < version
            self.table.add(content if lacking.all() else content.chosen(lacking))

    def _grow(self) -> None:
        more = self.table.capacity - self.versions.shape[0]
        if more:
            self.versions = np.concatenate([self.versions, np.zeros(more, np.uint64)])
            self._unproven = np.concatenate([self._unproven, np.zeros(more, np.bool_)])
