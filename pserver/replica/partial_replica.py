"""A partial replica: log tails, and single rows on demand, bit for bit as in a full replica.

A partial replica follows the logs as a replica does, but keeps only their tails: the entries that
keepers have not yet trimmed (pserver.replica.log_tail). A row consists of its folded part, read on
demand, and the entries beyond its version, added in the log's order. The result has exactly the
bits of a full replica at the same version. The argument, for one bucket:

1. Let the tail hold the entries beyond its floor up to its position. The store answers a `look`
   with rows, `trimmed`, head and entries as of one moment m. The rows are of the history that the
   bucket has at m, with or without failovers before.
2. Suppose that the entries continue the tail's chain of nonces, and that the tail follows them to
   the head of m. Then that history has every entry of the tail. The tail has every entry of that
   history beyond its floor, at least up to the head. Otherwise (the bucket went back, was loaded,
   or lost entries before they were read) the tail begins anew with the entries of the log, and the
   rows are read again.
3. Keepers fold before they trim. The row at m therefore includes its changes by entries up to
   `trimmed`, and all entries that it lacks are beyond `trimmed`. They are in the tail as long as
   its floor is not above `trimmed` at m. The floor is an earlier `trimmed` of the store. It may
   have gone back since, with the folds that allowed it, though no entry was lost; the tail then
   begins anew, too. Entries are forgotten only after the rows have been completed.
4. A row that the store lacks has two possible reasons. It was never folded, and all its entries are
   beyond `trimmed`. Or it was removed when it did not exist, as of some version up to the head of
   m; then a deletion removed it, and it was not seen since. If that deletion is in the tail, it
   also removes the changes of the tail's entries before it, as the row's last sighting in them is
   not later than its overall last one. If the deletion is forgotten, so are those entries. In both
   cases the changes since the deletion remain.

All rows of one bucket are therefore of one version, which is at least the head of m and not older
than the last poll. A bucket that does not answer is a value in the result; the rows of other
buckets are there.

Not safe for use from several threads.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import Unreachable
from headrace.pserver.replica.log_chain import (
    BrokenHistory,
    LogPosition,
    advanced,
    chain,
    log_of,
    unpacked,
)
from headrace.pserver.replica.log_tail import LogTail
from headrace.pserver.replica.replica import Stale
from headrace.pserver.rows.deltas import NEVER, Deletions, EntryHeader, RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import (
    ENTRIES_A_POLL,
    BucketAnswer,
    LookResult,
    PollResult,
    Shape,
    Store,
)

Ids = npt.NDArray[np.uint64]
Versions = npt.NDArray[np.uint64]

_TRIES = 4
"""Reads of a bucket's rows while its history breaks: one break is an event, three are an outage."""


class EntryApplied(NamedTuple):
    """An entry of a bucket's log was added to its tail."""

    bucket: int
    version: int
    header: EntryHeader
    content: RowDeltas | Deletions


class HistoryReset(NamedTuple):
    """The tail of a bucket begins anew: rows looked up before may be of a lost history.

    Caches drop their rows of this bucket.
    """

    bucket: int


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows, in the order in which they were asked for."""

    rows: FoldedRows
    """(n,) Rows that do not exist are zeros, as before their first delta."""
    present: npt.NDArray[np.bool_]
    """(n,) Whether the row exists."""
    versions: Versions
    """(n,) Version of the bucket's log that each row is of."""
    failed: Mapping[int, Unreachable]
    """Buckets that did not answer; their rows are unknown."""

    def known(self, shape: Shape) -> FoldedRows:
        """Return the rows of the buckets that answered."""
        if not self.failed:
            return self.rows
        of_row = shape.bucket_of(self.rows.ids)
        return self.rows.chosen(~np.isin(of_row, list(self.failed)))


def _nobody(_: object) -> None:
    pass


class PartialReplica:
    """Single rows of a model, by id."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        watch: Callable[[EntryApplied | HistoryReset], None] = _nobody,
    ) -> None:
        """`watch` is called for every entry added to a tail, in order, and for a bucket whose tail
        begins anew, before entries are added to it.
        """
        self.shape = shape
        self._store, self._watch = store, watch
        self._tail = LogTail(shape)
        self._positions: list[LogPosition | None] = [None] * shape.buckets
        self._trimmed = [
            0
        ] * shape.buckets  # as last read; entries up to it are forgotten when no row needs them
        self._changes: list[HistoryReset | Stale] = []  # not yet returned

    @property
    def complete(self) -> bool:
        """Whether the tail of every bucket has begun."""
        return None not in self._positions

    @property
    def tail_rows(self) -> int:
        """Rows of all entries in the tails."""
        return len(self._tail)

    @property
    def tail_bytes(self) -> int:
        """Bytes of memory of the tails."""
        return self._tail.size_bytes

    def begun(self, bucket: int) -> bool:
        """Whether the tail of the bucket has begun, so that it has a position."""
        return self._positions[bucket] is not None

    def position(self, bucket: int) -> LogPosition:
        """Return a bucket's position. Raises KeyError before its tail has begun."""
        position = self._positions[bucket]
        if position is None:
            raise KeyError(f"bucket {bucket}: its tail has not begun yet")
        return position

    def poll(self, limit: int = ENTRIES_A_POLL) -> list[HistoryReset | Stale]:
        """Read up to `limit` new entries a bucket; return the failures since the last call.

        Raises every StoreError but Unreachable.
        """
        broken = []
        after = {bucket: self._version(bucket) for bucket in range(self.shape.buckets)}
        for bucket, polled in zip(after, self._store.poll(after, limit), strict=True):
            if isinstance(polled, Unreachable):
                self._changes.append(Stale(bucket, polled))
                continue
            try:
                self._take(bucket, polled)
            except BrokenHistory:
                broken.append(bucket)
        self._restart(broken)
        self._forget()
        changes, self._changes = self._changes, []
        return changes

    def rows(self, ids: Ids, limit: int = ENTRIES_A_POLL) -> FoundRows:
        """Return the present state of these rows; ids may repeat.

        Raises every StoreError but Unreachable.
        """
        unique, places = np.unique(ids, return_inverse=True)
        rows, versions = _nothing(unique, self.shape.width), np.zeros(unique.shape[0], np.uint64)
        buckets, starts = np.unique(self.shape.bucket_of(unique), return_index=True)
        stops = np.append(starts, unique.shape[0])[1:]
        wanted = {
            bucket: unique[start:stop]
            for bucket, start, stop in zip(buckets.tolist(), starts, stops, strict=True)
        }
        failed: dict[int, Unreachable] = {}
        for _ in range(_TRIES):
            wanted = self._look(wanted, limit, rows, versions, failed)
            if not wanted:
                break
        for bucket in wanted:
            failed[bucket] = Unreachable(
                f"bucket {bucket}: its history changed {_TRIES} times while rows were read"
            )
        self._tail.bring(rows, versions)
        self._forget()
        reached = np.array([self._version(bucket) for bucket in buckets.tolist()], np.uint64)
        versions = np.repeat(reached, stops - starts)
        present = rows.exist()
        for bucket in failed:
            where = np.flatnonzero(self.shape.bucket_of(unique) == bucket)
            _put(rows, where, _nothing(unique[where], self.shape.width))
            present[where], versions[where] = False, 0
        return FoundRows(rows.chosen(places), present[places], versions[places], failed)

    def fold_own(self, answer: BucketAnswer, header: EntryHeader, deltas: RowDeltas) -> bool:
        """Add an entry that this process pushed to the tail, without reading it back.

        answer: to the push. Only if it is exactly the next entry. False: nothing was done, and
        `poll` brings it.
        """
        bucket, version = answer.bucket, answer.version
        position = self._positions[bucket]
        if position is None or not position.precedes(version, answer.previous):
            return False
        self._tail.append(bucket, version, deltas)
        self._positions[bucket] = advanced(position, version, answer.nonce, header)
        self._watch(EntryApplied(bucket, version, header, deltas))
        return True

    def _look(
        self,
        wanted: Mapping[int, Ids],
        limit: int,
        rows: FoldedRows,
        versions: Versions,
        failed: dict[int, Unreachable],
    ) -> dict[int, Ids]:
        """Read folded rows and follow the tails to them; return the ids to be read again."""
        again = {}
        after = {bucket: self._version(bucket) for bucket in wanted}
        for bucket, looked in zip(wanted, self._store.look(wanted, after, limit), strict=True):
            if isinstance(looked, Unreachable):
                failed[bucket] = looked
                continue
            try:
                self._follow_to(bucket, looked, limit)
            except Unreachable as error:
                failed[bucket] = error.with_traceback(None)  # its frames have `failed`: a cycle
            except BrokenHistory:
                again[bucket] = wanted[bucket]
            else:
                places = np.searchsorted(rows.ids, looked.rows.rows.ids)
                versions[places] = looked.rows.versions
                _put(rows, places, looked.rows.rows)
        self._restart(again)
        return again

    def _follow_to(self, bucket: int, looked: LookResult, limit: int) -> None:
        """Follow a tail to the bucket's head as of the read of its rows."""
        polled = looked.polled
        goal = max(polled.version, int(looked.rows.versions.max(initial=0)))
        self._take(bucket, polled)
        while (before := self._version(bucket)) < goal:
            [more] = self._store.poll({bucket: before}, limit)
            if isinstance(more, Unreachable):
                try:
                    raise more
                finally:
                    del more  # else the error keeps this frame and its callers' frames
            self._take(bucket, more)
            if self._version(bucket) == before:
                raise BrokenHistory(f"bucket {bucket}: rows are newer than the log")

    def _take(self, bucket: int, polled: PollResult) -> None:
        position = self._positions[bucket]
        if position is None:
            entries = log_of(polled)
            nonce = entries[0].previous if entries else polled.nonce
            position = LogPosition(polled.trimmed, nonce, 0, 0, {})
            self._tail.begin(bucket, polled.trimmed)
        else:
            if polled.trimmed < self._tail.floors[bucket]:
                raise BrokenHistory(f"bucket {bucket}: folds and a trim were lost")
            entries = chain(position.version, position.nonce, polled)
        self._positions[bucket], self._trimmed[bucket] = position, polled.trimmed
        for entry in entries:
            header, content = unpacked(self.shape, bucket, entry)
            self._tail.append(bucket, entry.version, content)
            position = advanced(position, entry.version, entry.nonce, header)
            self._positions[bucket] = position
            self._watch(EntryApplied(bucket, entry.version, header, content))

    def _restart(self, buckets: Collection[int]) -> None:
        if buckets:
            self._tail.drop(buckets)
        for bucket in buckets:
            self._positions[bucket] = None
            self._changes.append(HistoryReset(bucket))
            self._watch(HistoryReset(bucket))

    def _forget(self) -> None:
        for bucket, trimmed in enumerate(self._trimmed):
            if self._positions[bucket] is not None and trimmed > self._tail.floors[bucket]:
                self._tail.forget(bucket, trimmed)

    def _version(self, bucket: int) -> int:
        position = self._positions[bucket]
        return 0 if position is None else position.version


def _put(rows: FoldedRows, places: npt.NDArray[np.int64], new: FoldedRows) -> None:
    """Set the rows at these places to these values."""
    rows.shows[places], rows.clicks[places] = new.shows, new.clicks
    rows.first_seen[places], rows.last_seen[places] = new.first_seen, new.last_seen
    rows.values[places] = new.values


def _nothing(ids: Ids, width: int) -> FoldedRows:
    """Return rows without a delta."""
    count = ids.shape[0]
    return FoldedRows(
        ids,
        np.zeros(count, np.uint64),
        np.zeros(count, np.uint64),
        np.full(count, NEVER, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros((count, width), np.float32),
    )
