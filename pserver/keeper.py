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

`Keeper.step` does everything once. The clock and the dice are handed in.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pserver.errors import LostLease, Unreachable
from pserver.gains import unpack
from pserver.keeper_metrics import KeeperMetrics
from pserver.replica import Copied, Folded, Replica, Stale
from pserver.store import Fold, Trim

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from pserver.store import Shape, Store
    from pserver.table import Places

log = logging.getLogger(__name__)

_ENTRIES_A_POLL = 64
_FOLDS_A_ROUND = 16
"""Sent at a time: each node has work while another answers, and none is busy for long."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """When to fold and trim, and how buckets are shared."""

    keep_ms: int = 60_000
    """How long an entry stays for followers: a server that was away for less need not copy."""
    keep_bytes: int = 8 << 20
    """Of a bucket's log, if that is less: what the store's memory can spare, over the buckets.
    Well below the size at which learners begin to wait."""
    rows_a_fold: int = 1000
    """Rows written in one call, some 5 ms of the server's time: others wait no longer than that."""
    lease_ms: int = 10_000
    """How long a bucket stays untended after its keeper died. Renewed at a third of it."""


class Held(NamedTuple):
    """What a keeper remembers of an entry that is still in the log."""

    version: int
    size_bytes: int
    received_ms: int
    """By the keeper's clock: the log keeps an entry for followers that are live now."""
    places: Places
    """Rows that it was the first to touch since they were written."""


def due(entries: Sequence[Held], size_bytes: int, now_ms: int, keeping: Keeping) -> int:
    """Return how many of the oldest entries, of that size in all, are to be folded and trimmed now.

    None until the oldest is too old or all are too large; then so many that an eighth of the time
    or of the bytes becomes free, since one fold of many entries' rows is cheaper than many folds.
    Never the last one, which says how far the bucket's sources were read.
    """
    if not entries:
        return 0
    age_ms = now_ms - entries[0].received_ms
    if age_ms < keeping.keep_ms and size_bytes <= keeping.keep_bytes:
        return 0
    old_ms = now_ms - (keeping.keep_ms - keeping.keep_ms // 8)
    spared_bytes = keeping.keep_bytes - keeping.keep_bytes // 8
    count = 0
    for entry in itertools.islice(entries, len(entries) - 1):
        if entry.received_ms > old_ms and size_bytes <= spared_bytes:
            break
        size_bytes -= entry.size_bytes
        count += 1
    return count


@dataclass(slots=True)
class _Tenure:
    """One holding of one bucket."""

    token: str
    """Names this holding: a late call of an earlier one is not taken for one of this."""
    renewed_ms: int
    folds: int = 0
    stocked: bool = False
    """Whether `entries` is the whole log up to the replica's position."""
    entries: deque[Held] = field(default_factory=deque)
    size_bytes: int = 0
    """Of all entries."""
    count: int = 0
    """How many of the oldest entries are being folded, to be trimmed then; 0: none."""
    unwritten: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    """The rows of those that are still to be written, by id: neighbours lie in one sub-hash."""


class Keeper:
    """Tends the buckets it can get the leases of. Not safe for use from several threads."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        *,
        name: str,
        keeping: Keeping,
        now_ms: Callable[[], int],
        draw_nonce: Callable[[], bytes],
        metrics: KeeperMetrics | None = None,
    ) -> None:
        """`name` need not be unique: every holding of a bucket adds a nonce of its own."""
        self._store, self._shape, self._name = store, shape, name
        self._keeping, self._now_ms, self._draw_nonce = keeping, now_ms, draw_nonce
        self._metrics = metrics or KeeperMetrics(shape.model)
        self.replica = Replica(store, shape, buckets=())
        self._tenures: dict[int, _Tenure] = {}
        self._untended = deque(range(shape.buckets))  # in the order in which to claim them
        # keepers that start together begin at different buckets
        self._untended.rotate(int.from_bytes(draw_nonce()[:4], "little"))
        self._token = self._draw_token()
        self._claim_at_ms = 0
        self._since = np.zeros(0, np.bool_)  # (capacity,) whether some entry's `places` has it

    @property
    def held(self) -> list[int]:
        """The buckets whose lease this keeper has, as far as it knows; ascending."""
        return sorted(self._tenures)

    def step(self) -> bool:
        """Do everything once; return whether there was anything to read, fold or trim.

        1. lease   renew what is held, claim what nobody holds
        2. follow  the logs of what is held; remember which rows their entries touch first
        3. stock   read the whole log of a bucket that was taken over, or copied anew
        4. fold    write the rows of entries that are due, until others have waited long enough
        5. trim    remove the entries whose rows are written

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
                self._tenures[bucket] = _Tenure(self._token, now)
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
                case Copied(bucket=bucket):
                    self._forget(bucket)
        return any(not isinstance(change, Stale) for change in changes)

    def _remember(
        self, bucket: int, version: int, ids: npt.NDArray[np.uint64], size_bytes: int
    ) -> None:
        places = self.replica.table.find(ids)
        more = self.replica.table.columns.ids.shape[0] - self._since.shape[0]
        if more:
            self._since = np.concatenate([self._since, np.zeros(more, np.bool_)])
        first = places[~self._since[places]]
        self._since[first] = True
        held = Held(version, size_bytes, self._now_ms(), first)
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

    def _stock(self, bucket: int, tenure: _Tenure) -> bool:
        """Remember the whole log up to the replica's position; return whether that was possible."""
        goal, last = self.replica.position(bucket).version, 0
        while not tenure.stocked:
            [polled] = self._store.poll({bucket: last}, _ENTRIES_A_POLL)
            if isinstance(polled, Unreachable):
                break
            begin = max(last, polled.trimmed)
            if last and begin > last:
                break  # trimmed meanwhile, by a keeper that is on its way out
            for entry in polled.entries:
                if entry.version != begin + 1 or entry.version > goal:
                    break
                begin = entry.version
                self._remember(bucket, begin, unpack(entry.blob)[1].ids, len(entry.blob))
            tenure.stocked = begin == goal
            if begin in (last, goal) or begin > goal:
                break
            last = begin
        if not tenure.stocked:
            self._forget(bucket)
        return tenure.stocked

    def _begin(self, tenure: _Tenure) -> None:
        """Take the rows to be written out of the entries that are due."""
        if tenure.count:
            return
        tenure.count = due(tenure.entries, tenure.size_bytes, self._now_ms(), self._keeping)
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
            number = tenure.folds + 1
            folds.append(Fold(bucket, tenure.token, number, position.version, position.nonce, rows))
        if not folds:
            return
        with self._metrics.fold_seconds.time():
            answers = self._store.fold(folds)
        for fold, answer in zip(folds, answers, strict=True):
            if answer is not None:
                self._refused(fold.bucket, answer)
                continue
            tenure, count = self._tenures[fold.bucket], fold.rows.ids.shape[0]
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
                version, nonce = position.version, position.nonce
                through = tenure.entries[tenure.count - 1].version
                trims.append(Trim(bucket, tenure.token, tenure.folds, version, nonce, through))
        if not trims:
            return
        for trim, answer in zip(trims, self._store.trim(trims), strict=True):
            if answer is not None:
                self._refused(trim.bucket, answer)
                continue
            tenure = self._tenures[trim.bucket]
            for _ in range(tenure.count):
                tenure.size_bytes -= tenure.entries.popleft().size_bytes
            self._metrics.trimmed_entries.inc(tenure.count)
            tenure.count = 0

    def _refused(self, bucket: int, error: LostLease | Unreachable) -> None:
        if isinstance(error, LostLease):
            self._metrics.lost_leases.inc()
        # else whether the call had its effect is unknown, and so is the count of folds
        log.warning("letting bucket %d go: %s", bucket, error)
        self._let_go(bucket)
