"""Keepers: fold the logs into rows, and trim what is folded.

The log is where learners write, since appending is cheap; rows are where it ends, since a log grows
for ever. A keeper follows the logs of the buckets it holds with a replica, and remembers for each
entry which rows it was the first to touch since they were last written. Before an entry is trimmed,
just those rows are written, as they are *now*: a hot row that every entry touches is written once
in the time that the log is kept, not once an entry.

Any number of keepers share the buckets by leases, and can be killed at any time. A keeper knows
nothing that rows and log do not say: whoever takes a bucket reads its log anew, and counts all rows
in it as not yet written. The store refuses a fold or trim that comes too late, twice, or from a
history that is no more (see pserver.store); the keeper then lets the bucket go and starts afresh.

Rows that were not seen for too long, or that are too many (pserver.keeper.expiry), are deleted by
an entry of the log like any change, so that whoever follows it deletes them too; a row that
somebody saw meanwhile stays. Folding then removes them from the store.

`Keeper.step` does everything once. The clock and the dice are handed in.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
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
from headrace.pserver.replica import Copied, Deleted, Folded, Replica, Stale
from headrace.pserver.rows import DELETING_FORMAT, Deletions, EntryHeader, pack, unpack_entry
from headrace.pserver.store import Delete, Fold, Trim

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from headrace.pserver.replica import LogPosition
    from headrace.pserver.store import Shape, Store

__all__ = ["FoldPolicy", "Keeper", "PendingEntry", "entries_to_fold"]

log = logging.getLogger(__name__)

_ENTRIES_A_POLL = 64
_FOLDS_A_ROUND = 16
"""Sent at a time: each node has work while another answers, and none is busy for long."""


class Keeper:
    """Tends the buckets it can get the leases of. Not safe for use from several threads."""

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
        """`name` need not be unique: every holding of a bucket adds a nonce of its own."""
        self._store, self._shape, self._name = store, shape, name
        self._keeping, self._now_ms, self._draw_nonce = keeping, now_ms, draw_nonce
        self._metrics = metrics or KeeperMetrics(shape.model)
        self.replica = Replica(store, shape, buckets=())
        self._tenures: dict[int, BucketLease] = {}
        self._untended = deque(range(shape.buckets))  # in the order in which to claim them
        # keepers that start together begin at different buckets
        self._untended.rotate(int.from_bytes(draw_nonce()[:4], "little"))
        self._token = self._draw_token()
        self._claim_at_ms = 0
        self._expire_at_ms = now_ms() + keeping.expiry.interval_ms
        self._since = np.zeros(0, np.bool_)  # (room,) whether some entry's `places` has it

    @property
    def held(self) -> list[int]:
        """The buckets whose lease this keeper has, as far as it knows; ascending."""
        return sorted(self._tenures)

    def step(self) -> bool:
        """Do everything once; return whether there was anything to read, fold or trim.

        1. lease   renew what is held, claim what nobody holds
        2. follow  the logs of what is held; remember which rows their entries touch first
        3. stock   read the whole log of a bucket that was taken over, or copied anew
        4. fold    write the rows of entries that are entries_to_fold, until others have waited long
        enough 5. trim    remove the entries whose rows are written 6. expire  have rows deleted
        that are too old or too many

        Raises MissingBucket and what else the store raises beyond Unreachable and LostLease.
        """
        self._renew()
        self._claim()
        busy = self._follow()
        for bucket, tenure in self._tenures.items():
            if self.replica.copied(bucket) and (tenure.stocked or self._stock(bucket, tenure)):
                self._begin(tenure)
        until_ms = self._now_ms() + self._keeping.lease_ms // 8
        while any(tenure.count for tenure in self._tenures.values()):
            busy = True
            self._fold()
            self._trim()
            if self._now_ms() >= until_ms:
                break
        self._expire()
        self._compact()
        size_bytes = sum(tenure.size_bytes for tenure in self._tenures.values())
        self._metrics.hold(len(self._tenures), size_bytes)
        return busy

    def release(self) -> None:
        """Give all leases back, so that others need not wait for their ends."""
        for bucket in list(self._tenures):
            self._let_go(bucket)

    def _renew(self) -> None:
        now = self._now_ms()
        for bucket, tenure in list(self._tenures.items()):
            if now - tenure.renewed_ms < self._keeping.lease_ms // 3:
                continue
            try:
                kept = self._store.claim(bucket, tenure.token, self._keeping.lease_ms)
            except Unreachable:
                continue  # what it forbids, the store will refuse
            if kept:
                tenure.renewed_ms = now
            else:
                log.warning("bucket %d has another keeper now", bucket)
                self._metrics.lost_leases.inc()
                self._let_go(bucket)

    def _claim(self) -> None:
        now = self._now_ms()
        if now < self._claim_at_ms or not self._untended:
            return
        # not all at once, so that keepers that start together get some each
        for _ in range(min(len(self._untended), max(1, self._shape.buckets // 8))):
            bucket = self._untended.popleft()
            try:
                taken = self._store.claim(bucket, self._token, self._keeping.lease_ms)
            except Unreachable:
                taken = False
            if taken:
                self._tenures[bucket] = BucketLease(self._token, now)
            else:
                self._untended.append(bucket)
        self._token = self._draw_token()
        self.replica.follow(self._tenures)
        self._claim_at_ms = now + self._keeping.lease_ms // 100

    def _draw_token(self) -> str:
        return f"{self._name}:{self._draw_nonce().hex()}"

    def _follow(self) -> bool:
        changes = self.replica.poll(_ENTRIES_A_POLL)
        for change in changes:
            match change:
                case Folded(bucket=bucket) if self._tenures[bucket].stocked:
                    ids, size_bytes = change.gains.ids, change.size_bytes
                    self._remember(bucket, change.version, ids, size_bytes)
                case Deleted(bucket=bucket) if self._tenures[bucket].stocked:
                    self._remember(bucket, change.version, change.ids, change.size_bytes)
                case Copied(bucket=bucket):
                    self._forget(bucket)
        return any(not isinstance(change, Stale) for change in changes)

    def _remember(
        self, bucket: int, version: int, ids: npt.NDArray[np.uint64], size_bytes: int
    ) -> None:
        places = self.replica.table.find(ids)
        places = places[places >= 0]  # a row to be deleted may never have been here
        more = self.replica.table.room - self._since.shape[0]
        if more:
            self._since = np.concatenate([self._since, np.zeros(more, np.bool_)])
        first = places[~self._since[places]]
        self._since[first] = True
        held = PendingEntry(version, size_bytes, self._now_ms(), first)
        tenure = self._tenures[bucket]
        tenure.entries.append(held)
        tenure.size_bytes += size_bytes

    def _forget(self, bucket: int) -> None:
        tenure = self._tenures[bucket]
        for entry in tenure.entries:
            self._since[entry.places] = False
        tenure.entries.clear()
        self._since[tenure.unwritten] = False
        tenure.unwritten = tenure.unwritten[:0]
        tenure.size_bytes, tenure.count, tenure.stocked = 0, 0, False

    def _let_go(self, bucket: int) -> None:
        self._forget(bucket)
        tenure = self._tenures.pop(bucket)
        self._untended.append(bucket)
        self.replica.follow(self._tenures)
        try:
            self._store.release(bucket, tenure.token)
        except Unreachable:
            log.info("the lease of bucket %d ends by itself", bucket)

    def _stock(self, bucket: int, tenure: BucketLease) -> bool:
        """Remember the whole log up to the replica's position; return whether that was possible."""
        goal, last = self.replica.position(bucket).version, 0
        while not tenure.stocked:
            [polled] = self._store.poll({bucket: last}, _ENTRIES_A_POLL)
            if isinstance(polled, Unreachable):
                break
            begin = max(last, polled.trimmed)
            if not last:
                tenure.trimmed = begin
            elif begin > last:
                break  # trimmed meanwhile, by a keeper that is on its way out
            for entry in polled.entries:
                if entry.version != begin + 1 or entry.version > goal:
                    break
                begin = entry.version
                ids = unpack_entry(entry.blob)[1].ids
                self._remember(bucket, begin, ids, len(entry.blob))
            tenure.stocked = begin == goal
            if begin in (last, goal) or begin > goal:
                break
            last = begin
        if not tenure.stocked:
            self._forget(bucket)
        return tenure.stocked

    def _begin(self, tenure: BucketLease) -> None:
        """Take the rows to be written out of the entries that are entries_to_fold."""
        if tenure.count:
            return
        tenure.count = entries_to_fold(
            tenure.entries, tenure.size_bytes, self._now_ms(), self._keeping
        )
        places = [tenure.unwritten]
        for index in range(tenure.count):
            entry = tenure.entries[index]
            places.append(entry.places)
            tenure.entries[index] = entry._replace(places=entry.places[:0])
        joined = np.concatenate(places)
        tenure.unwritten = joined[np.argsort(self.replica.table.columns.ids[joined])]

    def _fold(self) -> None:
        """Write rows of the buckets with the largest logs, as they are now."""
        wanting = [bucket for bucket, tenure in self._tenures.items() if tenure.unwritten.size]
        wanting.sort(key=lambda bucket: -self._tenures[bucket].size_bytes)
        folds = []
        for bucket in wanting[:_FOLDS_A_ROUND]:
            tenure, position = self._tenures[bucket], self.replica.position(bucket)
            rows = self.replica.table.take(tenure.unwritten[: self._keeping.rows_a_fold])
            exist = rows.exist()
            fence = (tenure.token, tenure.folds + 1, position.version, position.nonce)
            folds.append(Fold(bucket, *fence, rows.chosen(exist), rows.ids[~exist]))
        if not folds:
            return
        with self._metrics.fold_seconds.time():
            answers = self._store.fold(folds)
        for fold, answer in zip(folds, answers, strict=True):
            if answer is not None:
                self._refused(fold.bucket, answer)
                continue
            tenure = self._tenures[fold.bucket]
            count = fold.rows.ids.shape[0] + fold.gone.shape[0]
            tenure.folds = fold.number
            self._since[tenure.unwritten[:count]] = False
            tenure.unwritten = tenure.unwritten[count:]
            self._metrics.folded_rows.inc(count)

    def _trim(self) -> None:
        """Remove the entries of which every row is written."""
        trims = []
        for bucket, tenure in self._tenures.items():
            if tenure.count and not tenure.unwritten.size:
                position = self.replica.position(bucket)
                fence = (tenure.token, tenure.folds, position.version, position.nonce)
                through = tenure.entries[tenure.count - 1].version
                trims.append(Trim(bucket, *fence, through, tenure.trimmed))
        if not trims:
            return
        for trim, answer in zip(trims, self._store.trim(trims), strict=True):
            if answer is not None:
                self._refused(trim.bucket, answer)
                continue
            tenure = self._tenures[trim.bucket]
            tenure.trimmed = trim.through
            for _ in range(tenure.count):
                tenure.size_bytes -= tenure.entries.popleft().size_bytes
            self._metrics.trimmed_entries.inc(tenure.count)
            tenure.count = 0

    def _expire(self) -> None:
        """Append deletions of rows that are too old or too many."""
        expiry, now = self._keeping.expiry, self._now_ms()
        if not expiry or now < self._expire_at_ms:
            return
        self._expire_at_ms = now + expiry.interval_ms
        rows = self.replica.table.everything()
        deletes, counts = [], []
        for bucket, going in expired_rows(rows, self._shape, expiry):
            tenure = self._tenures.get(bucket)
            if tenure is None or not tenure.stocked:
                continue
            position = self.replica.position(bucket)
            blob = _deleting(position, Deletions(rows.ids[going], rows.last_seen[going]))
            fence = (tenure.token, tenure.folds, position.version, position.nonce)
            deletes.append(Delete(bucket, *fence, self._draw_nonce(), blob))
            counts.append(going.shape[0])
        if not deletes:
            return
        answers = self._store.delete(deletes)
        for delete, count, answer in zip(deletes, counts, answers, strict=True):
            if answer is not None:
                self._refused(delete.bucket, answer)
            else:
                self._metrics.deleted_rows.inc(count)

    def _compact(self) -> None:
        # a bucket that is not stocked does not know yet which removed rows the store still has
        if not all(tenure.stocked for tenure in self._tenures.values()):
            return
        keep = np.zeros(self.replica.table.room, np.bool_)
        keep[: self._since.shape[0]] = self._since
        moved = self.replica.compact(keep)
        if moved is None:
            return
        self._since = np.zeros(self.replica.table.room, np.bool_)
        self._since[moved[np.flatnonzero(keep)]] = True
        for tenure in self._tenures.values():
            tenure.moved(moved)

    def _refused(self, bucket: int, error: LostLease | Unreachable) -> None:
        if isinstance(error, LostLease):
            self._metrics.lost_leases.inc()
        # else whether the call had its effect is unknown, and so is the count of folds
        log.warning("letting bucket %d go: %s", bucket, error)
        self._let_go(bucket)


def _deleting(position: LogPosition, deletions: Deletions) -> bytes:
    """Return an entry that deletes, and repeats how far the bucket has come: it may be the last."""
    rows = deletions.ids.shape[0]
    reached = [replace(each, clicks=[]) for each in position.reached.values()]
    header = EntryHeader(0, rows, position.event_ms, position.append_ms, reached, DELETING_FORMAT)
    return pack(header, deletions)
