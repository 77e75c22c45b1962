"""A copy of a model's rows in this process, kept up with the logs.

Learners, servers and keepers all hold one. A replica adds what the entries of a bucket's log say,
in the log's order, to its rows; float additions in one order give one result, so all replicas at
one version are equal bit for bit, and a checksum can prove it. An entry of deletions removes the
rows that were not seen since it was decided: at the same place of the log in every replica.

To copy a bucket: read its whole log; then its rows, each with the version up to which it is folded;
add to each row the entries beyond its version; then follow the log at least to the version that the
bucket had after its rows were read. Only then is the copy complete, and takes the place of what the
table held of that bucket, which stayed visible until then. A row that was not found is one that was
never folded, so all its entries are in the log that was read; or one that was removed, and then so
are all entries beyond its removal, if not that itself.

A row that was folded beyond the log read so far may be of a history that a failover took back while
the rows were read, and that others have rewritten since: such rows are read again, until all are of
versions that had been followed before. The poll behind that tells whether they still are history.

To follow a bucket: each poll brings its head and the entries beyond mine. They form a chain, for
each names the nonce of the one before. A gap (trimmed under me), a link that does not fit, a head
below mine or a head at mine with another nonce (a failover rewrote history): copy it again.

Not safe for use from several threads; but others may read the table while it is kept up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.replica.log_chain import (
    BrokenHistory,
    LogPosition,
    advanced,
    chain,
    log_of,
    unpacked,
)
from headrace.pserver.rows import Deletions, RowDeltas, RowTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from headrace.pserver.rows import EntryHeader, FoldedRows, Places, StoredRows
    from headrace.pserver.store import Entry, PollResult, Shape, Store

_COPIES_A_POLL = 8
"""Buckets copied in one poll: more, and those already followed would wait for too long."""
_ENTRIES_A_POLL = 64
"""Of one bucket, unless asked otherwise."""


class Folded(NamedTuple):
    """An entry was added to the rows of a bucket."""

    bucket: int
    version: int
    header: EntryHeader
    gains: RowDeltas
    size_bytes: int
    """Of the entry in the log."""


class Copied(NamedTuple):
    """A bucket was copied anew: any of its rows may have changed."""

    bucket: int


class Stale(NamedTuple):
    """A bucket could not be followed or copied now; what is known of it stays as it was."""

    bucket: int
    error: StoreError


class Deleted(NamedTuple):
    """An entry of deletions was applied to the rows of a bucket."""

    bucket: int
    version: int
    header: EntryHeader
    ids: npt.NDArray[np.uint64]
    """Named by the entry; a row seen since is still there."""
    size_bytes: int
    """Of the entry in the log."""


Change = Folded | Deleted | Copied | Stale


class Replica:
    """All rows of a model, or of some of its buckets, as of a version of each bucket."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        table: RowTable | None = None,
        buckets: Iterable[int] | None = None,
    ) -> None:
        """Follow `buckets` (all, if None) into `table` (a new one, if None)."""
        self.shape = shape
        self.table = RowTable(shape.width) if table is None else table
        self._store = store
        self._positions: dict[int, LogPosition | None] = {}  # None: never copied
        self._broken: dict[int, None] = {}  # to be copied (again), the longest waiting first
        self._changes: list[Change] = []  # not yet returned
        self.follow(range(shape.buckets) if buckets is None else buckets)

    @property
    def complete(self) -> bool:
        """Whether every bucket that is followed was copied once."""
        return None not in self._positions.values()

    @property
    def buckets(self) -> list[int]:
        """The buckets that are followed, ascending."""
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
        """Whether there is a position: the bucket was copied once."""
        return self._positions.get(bucket) is not None

    def position(self, bucket: int) -> LogPosition:
        """Return how far the bucket was followed. Raises KeyError before it was copied once."""
        position = self._positions.get(bucket)
        if position is None:
            raise KeyError(f"bucket {bucket} is not copied yet")
        return position

    def poll(self, limit: int = _ENTRIES_A_POLL) -> list[Change]:
        """Take in what is new, up to `limit` entries a bucket; return what changed, in order.

        Raises what the store raises beyond Unreachable; the next call then returns what changed
        before that.
        """
        self._follow_all(limit)
        for bucket in list(self._broken)[:_COPIES_A_POLL]:
            try:
                self._copy(bucket, limit)
            except (BrokenHistory, Unreachable) as error:
                known = error if isinstance(error, Unreachable) else StoreError(str(error))
                self._changes.append(Stale(bucket, known))
                self._broken[bucket] = self._broken.pop(bucket)  # behind those that wait
            else:
                self._changes.append(Copied(bucket))
                del self._broken[bucket]
        changes, self._changes = self._changes, []
        return changes

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
        position = self._positions.get(bucket)
        if position is None or bucket in self._broken:
            return False
        if not position.precedes(version, previous_nonce):
            return False
        self.table.add(gains)
        self._positions[bucket] = advanced(position, version, nonce, header)
        return True

    def compact(self, keep: npt.NDArray[np.bool_] | None = None) -> Places | None:
        """Give back the memory of rows that were removed, if they are many.

        `keep` and what is returned are RowTable.compact's; None: nothing was done, or yet worth it.
        Whoever remembers places of the table has to call this, and nobody else.
        """
        return self.table.compact(keep) if self.table.sparse else None

    def places(self, bucket: int) -> Places:
        """Return the places in the table of all rows of a bucket, in no particular order."""
        return np.flatnonzero(self.shape.bucket_of(self.table.ids) == bucket)

    def checksum(self, bucket: int) -> str:
        """Return a digest of the bucket's rows: equal where replicas at one version are equal.

        FoldedRows that are as if they had never existed do not count.
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
            header, content = unpacked(bucket, entry, self.shape.width)
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
        """Copy a bucket. Raises BrokenHistory, Unreachable; the table is untouched then."""
        start = self._poll_one(bucket, 0, limit)
        log = list(log_of(start))
        if log:
            while log[-1].version < start.version:  # the log is longer than one poll
                more = self._poll_one(bucket, log[-1].version, limit)
                if not more.entries:  # it went back to just what was read: nothing will come
                    raise BrokenHistory(f"bucket {bucket} went back while its log was read")
                log += chain(log[-1].version, log[-1].nonce, more)
        head = log[-1] if log else start
        copy = _Copy(self.shape.width, LogPosition(head.version, head.nonce, 0, 0, {}))
        for chunk in self._store.rows(bucket):
            if chunk.trimmed < start.trimmed:
                raise BrokenHistory(f"bucket {bucket} went back to entries that were trimmed")
            copy.put(chunk.rows, chunk.versions)
        for entry in log:
            copy.add(entry, *unpacked(bucket, entry, self.shape.width))
        self._follow_up(bucket, copy, limit)
        known = head.version
        while (newer := copy.newer_than(known)).shape[0]:
            known = copy.position.version
            [found] = self._store.look({bucket: newer}, {bucket: known}, limit)
            if isinstance(found, Unreachable):
                raise found
            if found.polled.trimmed < start.trimmed:
                raise BrokenHistory(f"bucket {bucket} went back to entries that were trimmed")
            copy.put_again(newer, found.rows)
            self._follow_up(bucket, copy, limit)
        self._swap(bucket, copy)

    def _follow_up(self, bucket: int, copy: _Copy, limit: int) -> None:
        """Follow to the head that the bucket had after its rows were read, or beyond."""
        goal = None
        while goal is None or copy.position.version < goal:
            position = copy.position
            polled = self._poll_one(bucket, position.version, limit)
            if goal is None:
                goal = max(polled.version, copy.newest)
            for entry in chain(position.version, position.nonce, polled):
                copy.add(entry, *unpacked(bucket, entry, self.shape.width))
            if copy.position is position and position.version < goal:
                raise BrokenHistory(f"bucket {bucket}: rows are newer than the log")

    def _swap(self, bucket: int, copy: _Copy) -> None:
        if self.copied(bucket):
            old = self.places(bucket)
            gone = copy.table.find(self.table.columns.ids[old]) < 0
            self.table.clear(old[gone])
        self.table.put(copy.table.everything())
        self._positions[bucket] = copy.position

    def _poll_one(self, bucket: int, after: int, limit: int) -> PollResult:
        [polled] = self._store.poll({bucket: after}, limit)
        if isinstance(polled, Unreachable):
            raise polled
        return polled


class _Copy:
    """A bucket while it is copied: rows of different versions, until the log brings all to one."""

    def __init__(self, width: int, position: LogPosition) -> None:
        self.table = RowTable(width)
        self.versions = np.zeros(self.table.room, np.uint64)  # up to which each place is folded
        self.newest = 0
        """Greatest version among the rows as they were read."""
        self.position = position
        self._entries: list[tuple[int, RowDeltas | Deletions]] = []

    def newer_than(self, version: int) -> npt.NDArray[np.uint64]:
        """Return the ids of rows that were read at a version beyond this one."""
        count = len(self.table)
        return self.table.ids[self.versions[:count] > version]

    def put_again(self, ids: npt.NDArray[np.uint64], stored: StoredRows) -> None:
        """Take rows as they were read now, or not found, and add to them what they lack."""
        places = self.table.find(ids)
        self.table.clear(places)
        self.versions[places] = 0
        self.put(stored.rows, stored.versions)
        for version, content in self._entries:
            self._apply(version, content.chosen(np.isin(content.ids, ids)))

    def put(self, rows: FoldedRows, versions: npt.NDArray[np.uint64]) -> None:
        """Take rows as they were read; of a row read twice, the newer."""
        places = self.table.find_or_add(rows.ids)
        self._grow()
        newer = versions >= self.versions[places]
        if newer.all():
            self.table.put(rows)
        else:
            self.table.put(rows.chosen(newer))
        self.versions[places[newer]] = versions[newer]
        self.newest = max(self.newest, int(versions.max(initial=0)))

    def add(self, entry: Entry, header: EntryHeader, content: RowDeltas | Deletions) -> None:
        """Add an entry to the rows that are not folded up to it, or delete those."""
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
        more = self.table.room - self.versions.shape[0]
        if more:
            self.versions = np.concatenate([self.versions, np.zeros(more, np.uint64)])
