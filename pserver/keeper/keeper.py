"""A keeper: folds the logs of buckets into rows, and trims the folded entries.

Learners write to the log, because appending is cheap. A log would grow for ever, so its entries end
in rows. A keeper follows the logs of the buckets it holds with a replica. For each entry it
remembers the rows that the entry was the first to change since they were last written. Before the
entry is trimmed, exactly those rows are written, with their *present* values. A hot row that every
entry changes is therefore written once in the time that the log is kept, not once an entry.

Any number of keepers share the buckets by leases, and can be killed at any time. A keeper has no
state beyond rows and log. A keeper that takes a bucket reads its log, and counts all rows in it as
unwritten. The store refuses a fold or trim that is late, repeated, or of a history that no longer
exists (see pserver.store). The keeper then releases the bucket and starts afresh.

Rows that were not seen for too long, or are too many (pserver.keeper.expiry), are deleted by an
entry of the log, like any change. Followers therefore delete them, too, and a row that was seen
meanwhile stays. Folding then removes the rows from the store.

`Keeper.step` runs every step once. Clock and random numbers are passed in.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from headrace.pserver.errors import LostLease, Unreachable
from headrace.pserver.keeper.bucket_lease import (
    BucketLease,
    FoldPolicy,
    PendingEntry,
    entries_to_fold,
)
from headrace.pserver.keeper.expiry import expired_rows
from headrace.pserver.keeper.metrics import KeeperMetrics
from headrace.pserver.replica.log_chain import LogPosition
from headrace.pserver.replica.replica import BucketRecopied, Deleted, Folded, Replica, Stale
from headrace.pserver.rows.deltas import DELETING_FORMAT, Deletions, EntryHeader, pack, unpack_entry
from headrace.pserver.store import ENTRIES_A_POLL, Delete, Fold, Shape, Store, Trim

log = logging.getLogger(__name__)

_FOLDS_A_ROUND = 16
"""Folds sent at a time: every node has work, and none is busy for long."""


class Keeper:
    """Tends the buckets whose leases it can get. Not safe for use from several threads."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        *,
        name: str,
        keeping: FoldPolicy,
        now_ms: Callable[[], int],
        draw_nonce: Callable[[], bytes],
        metrics: KeeperMetrics | None = None,
    ) -> None:
        """`name` need not be unique: a nonce is added for every holding of a bucket."""
        self._store, self._shape, self._name = store, shape, name
        self._keeping, self._now_ms, self._draw_nonce = keeping, now_ms, draw_nonce
        self._metrics = metrics or KeeperMetrics(shape.model)
        self.replica = Replica(store, shape, buckets=())
        self._leases: dict[int, BucketLease] = {}
        self._untended = deque(range(shape.buckets))  # in the order of claims
        # keepers that start together begin at different buckets
        self._untended.rotate(int.from_bytes(draw_nonce()[:4], "little"))
        self._token = self._draw_token()
        self._claim_at_ms = 0
        self._expire_at_ms = now_ms() + keeping.expiry.interval_ms
        self._row_limit = 0
        self._since = np.zeros(0, np.bool_)  # (capacity,) whether some entry's `places` has it

    @property
    def leased(self) -> list[int]:
        """The buckets that this keeper holds, unless a lease was lost since; ascending."""
        return sorted(self._leases)

    def versions(self) -> dict[int, int]:
        """Return how far the logs of held buckets were read. Safe to call in any thread."""
        found = {bucket: self.replica.reached(bucket) for bucket in list(self._leases)}
        return {bucket: position.version for bucket, position in found.items() if position}

    def trimmed(self) -> dict[int, tuple[int, int]]:
        """Return folds and trims by held bucket. Safe to call in any thread."""
        return {bucket: (each.folds, each.trimmed) for bucket, each in list(self._leases.items())}

    def folding(self) -> list[int]:
        """Return the buckets with entries that are due. Safe to call in any thread."""
        return [bucket for bucket, each in list(self._leases.items()) if each.count]

    def step(self) -> bool:
        """Run every step once; return whether there was anything to read, fold or trim.

        1. lease: renew held leases, and claim free ones
        2. follow: read the logs of held buckets, and remember which rows their entries change first
        3. stock: read the complete log of a bucket that was taken over, or copied again
        4. fold: write the rows of the entries to fold, until other steps have waited long enough
        5. trim: remove the entries whose rows are written
        6. expire: delete the rows that are too old or too many

        Raises MissingBucket, and every StoreError but Unreachable and LostLease.
        """
        self._renew()
        self._claim()
        busy = self._follow()
        for bucket, lease in self._leases.items():
            if self.replica.copied(bucket) and (lease.stocked or self._stock(bucket, lease)):
                self._begin(lease)
        until_ms = self._now_ms() + self._keeping.lease_ms // 8
        while any(lease.count for lease in self._leases.values()):
            busy = True
            self._fold()
            self._trim()
            if self._now_ms() >= until_ms:
                break
        self._expire()
        self._compact()
        size_bytes = sum(lease.size_bytes for lease in self._leases.values())
        self._metrics.hold(len(self._leases), size_bytes, len(self.replica.table))
        return busy

    def release(self) -> None:
        """Release all leases, so that other keepers need not wait for their ends."""
        for bucket in list(self._leases):
            self._release(bucket)

    def _renew(self) -> None:
        now = self._now_ms()
        for bucket, lease in list(self._leases.items()):
            if now - lease.renewed_ms < self._keeping.lease_ms // 3:
                continue
            try:
                kept = self._store.claim(bucket, lease.token, self._keeping.lease_ms)
            except Unreachable:
                continue  # the store refuses the calls of a lost lease
            if kept:
                lease.renewed_ms = now
            else:
                log.warning("bucket %d: another keeper holds the lease now", bucket)
                self._metrics.lost_leases.inc()
                self._release(bucket)

    def _claim(self) -> None:
        now = self._now_ms()
        if now < self._claim_at_ms or not self._untended:
            return
        # a part at a time, so that keepers that start together share the buckets
        for _ in range(min(len(self._untended), max(1, self._shape.buckets // 8))):
            bucket = self._untended.popleft()
            try:
                taken = self._store.claim(bucket, self._token, self._keeping.lease_ms)
            except Unreachable:
                taken = False
            if taken:
                self._leases[bucket] = BucketLease(self._token, now)
            else:
                self._untended.append(bucket)
        self._token = self._draw_token()
        self.replica.follow(self._leases)
        self._claim_at_ms = now + self._keeping.lease_ms // 100

    def _draw_token(self) -> str:
        return f"{self._name}:{self._draw_nonce().hex()}"

    def _follow(self) -> bool:
        changes = self.replica.poll(ENTRIES_A_POLL)
        for change in changes:
            match change:
                case Folded(bucket=bucket) if self._leases[bucket].stocked:
                    ids, size_bytes = change.deltas.ids, change.size_bytes
                    self._remember(bucket, change.version, ids, size_bytes)
                case Deleted(bucket=bucket) if self._leases[bucket].stocked:
                    self._remember(bucket, change.version, change.ids, change.size_bytes)
                case BucketRecopied(bucket=bucket):
                    self._forget(bucket)
        return any(not isinstance(change, Stale) for change in changes)

    def _remember(
        self, bucket: int, version: int, ids: npt.NDArray[np.uint64], size_bytes: int
    ) -> None:
        places = self.replica.table.find(ids)
        places = places[places >= 0]  # the replica may never have had a deleted row
        more = self.replica.table.capacity - self._since.shape[0]
        if more:
            self._since = np.concatenate([self._since, np.zeros(more, np.bool_)])
        first = places[~self._since[places]]
        self._since[first] = True
        entry = PendingEntry(version, size_bytes, self._now_ms(), first)
        lease = self._leases[bucket]
        lease.entries.append(entry)
        lease.size_bytes += size_bytes

    def _forget(self, bucket: int) -> None:
        lease = self._leases[bucket]
        for entry in lease.entries:
            self._since[entry.places] = False
        lease.entries.clear()
        self._since[lease.unwritten] = False
        lease.unwritten = lease.unwritten[:0]
        lease.size_bytes, lease.count, lease.stocked = 0, 0, False

    def _release(self, bucket: int) -> None:
        self._forget(bucket)
        lease = self._leases.pop(bucket)
        self._untended.append(bucket)
        self.replica.follow(self._leases)
        try:
            self._store.release(bucket, lease.token)
        except Unreachable:
            log.info("bucket %d: not released, its lease ends by itself", bucket)

    def _stock(self, bucket: int, lease: BucketLease) -> bool:
        """Remember the log up to the replica's position; return whether that was possible."""
        goal, last = self.replica.position(bucket).version, 0
        while not lease.stocked:
            [polled] = self._store.poll({bucket: last}, ENTRIES_A_POLL)
            if isinstance(polled, Unreachable):
                break
            begin = max(last, polled.trimmed)
            if not last:
                lease.trimmed = begin
            elif begin > last:
                break  # trimmed meanwhile by the keeper before
            for entry in polled.entries:
                if entry.version != begin + 1 or entry.version > goal:
                    break
                begin = entry.version
                ids = unpack_entry(entry.blob)[1].ids
                self._remember(bucket, begin, ids, len(entry.blob))
            lease.stocked = begin == goal
            if begin in (last, goal) or begin > goal:
                break
            last = begin
        if not lease.stocked:
            self._forget(bucket)
        return lease.stocked

    def _begin(self, lease: BucketLease) -> None:
        """Begin to fold the oldest entries that are due."""
        if lease.count:
            return
        lease.count = entries_to_fold(
            lease.entries, lease.size_bytes, self._now_ms(), self._keeping
        )
        places = [lease.unwritten]
        for index in range(lease.count):
            entry = lease.entries[index]
            places.append(entry.places)
            lease.entries[index] = entry._replace(places=entry.places[:0])
        joined = np.concatenate(places)
        lease.unwritten = joined[np.argsort(self.replica.table.columns.ids[joined])]

    def _fold(self) -> None:
        """Write rows of the buckets with the largest logs, with their present values."""
        wanting = [bucket for bucket, lease in self._leases.items() if lease.unwritten.size]
        wanting.sort(key=lambda bucket: -self._leases[bucket].size_bytes)
        folds = []
        for bucket in wanting[:_FOLDS_A_ROUND]:
            lease, position = self._leases[bucket], self.replica.position(bucket)
            rows = self.replica.table.take(lease.unwritten[: self._keeping.rows_a_fold])
            exist = rows.exist()
            fence = (lease.token, lease.folds + 1, position.version, position.nonce)
            folds.append(Fold(bucket, *fence, rows.chosen(exist), rows.ids[~exist]))
        if not folds:
            return
        answers = self._store.fold(folds)
        for fold, answer in zip(folds, answers, strict=True):
            if answer is not None:
                self._refused(fold.bucket, answer)
                continue
            lease = self._leases[fold.bucket]
            count = fold.rows.ids.shape[0] + fold.gone.shape[0]
            lease.folds = fold.number
            self._since[lease.unwritten[:count]] = False
            lease.unwritten = lease.unwritten[count:]
            self._metrics.folded_rows.inc(count)

    def _trim(self) -> None:
        """Remove the entries whose rows are all written."""
        trims = []
        for bucket, lease in self._leases.items():
            if lease.count and not lease.unwritten.size:
                position = self.replica.position(bucket)
                fence = (lease.token, lease.folds, position.version, position.nonce)
                through = lease.entries[lease.count - 1].version
                trims.append(Trim(bucket, *fence, through, lease.trimmed))
        if not trims:
            return
        for trim, answer in zip(trims, self._store.trim(trims), strict=True):
            if answer is not None:
                self._refused(trim.bucket, answer)
                continue
            lease = self._leases[trim.bucket]
            lease.trimmed = trim.through
            for _ in range(lease.count):
                lease.size_bytes -= lease.entries.popleft().size_bytes
            self._metrics.trimmed_entries.inc(lease.count)
            lease.count = 0

    def _expire(self) -> None:
        """Append deletions of rows that are too old or too many."""
        now = self._now_ms()
        if now < self._expire_at_ms:
            return
        self._expire_at_ms = now + self._keeping.expiry.interval_ms
        expiry = self._keeping.expiry.within(self._read_limit())
        if not expiry:
            return
        limited = expiry.most_rows == self._row_limit > 0
        rows = self.replica.table.everything()
        deletes, counts = [], []
        for bucket, going, beyond in expired_rows(rows, self._shape, expiry):
            lease = self._leases.get(bucket)
            if lease is None or not lease.stocked:
                continue
            position = self.replica.position(bucket)
            blob = _deleting(position, Deletions(rows.ids[going], rows.last_seen[going]))
            fence = (lease.token, lease.folds, position.version, position.nonce)
            deletes.append(Delete(bucket, *fence, self._draw_nonce(), blob))
            counts.append((going.shape[0], beyond if limited else 0))
        if not deletes:
            return
        answers = self._store.delete(deletes)
        for delete, (count, beyond), answer in zip(deletes, counts, answers, strict=True):
            if answer is not None:
                self._refused(delete.bucket, answer)
            else:
                self._metrics.deleted_rows.inc(count)
                self._metrics.limited_rows.inc(beyond)

    def _read_limit(self) -> int:
        """Return the operator's limit on the rows, as last read if the store does not answer."""
        with suppress(Unreachable):
            self._row_limit = self._store.row_limit()
        self._metrics.row_limit.set(self._row_limit)
        return self._row_limit

    def _compact(self) -> None:
        # before a bucket is stocked, deleted rows that the store still has are unknown
        if not all(lease.stocked for lease in self._leases.values()):
            return
        keep = np.zeros(self.replica.table.capacity, np.bool_)
        keep[: self._since.shape[0]] = self._since
        moved = self.replica.compact(keep)
        if moved is None:
            return
        self._since = np.zeros(self.replica.table.capacity, np.bool_)
        self._since[moved[np.flatnonzero(keep)]] = True
        for lease in self._leases.values():
            lease.moved(moved)

    def _refused(self, bucket: int, error: LostLease | Unreachable) -> None:
        if isinstance(error, LostLease):
            self._metrics.lost_leases.inc()
        # otherwise it is unknown whether the call was executed, and the count of folds with it
        log.warning("releasing bucket %d: %s", bucket, error)
        self._release(bucket)


def _deleting(position: LogPosition, deletions: Deletions) -> bytes:
    """Return an entry of deletions. It repeats the bucket's positions, because it may be the last
    entry.
    """
    rows = deletions.ids.shape[0]
    reached = [replace(each, clicks=[]) for each in position.reached.values()]
    header = EntryHeader(0, rows, position.event_ms, position.append_ms, reached, DELETING_FORMAT)
    return pack(header, deletions)
