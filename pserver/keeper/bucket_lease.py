"""A keeper's lease of a bucket: what the keeper remembers of it, and when it folds and trims.

A lease is the right of one keeper to fold and trim a bucket's log. The store grants it for
`lease_ms` and the keeper renews it. If the keeper dies, the lease runs out and another keeper gets
the bucket. The store checks the lease and the count of folds in each call (`pserver/store.py`), so
a keeper that lost its lease cannot change rows. Learners need no lease: `pserver/push_fence.py`
compares the marks of their pushes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.pserver.keeper.expiry import Expiry

if TYPE_CHECKING:
    from headrace.pserver.rows.table import Places


@dataclass(frozen=True, slots=True)
class FoldPolicy:
    """When to fold and trim, and how buckets are shared."""

    keep_ms: int = 60_000
    """Age up to which entries stay for followers: a server that was away for less need not copy."""
    keep_bytes: int = 8 << 20
    """Most bytes of a bucket's log, even if its entries are younger: the memory that the store can
    spare, divided by the buckets. Well below the size at which learners begin to wait."""
    trim_bytes: int = 256 << 10
    """Bytes of a bucket's log that are folded and trimmed at a time, except for a larger entry. A
    long log becomes shorter step by step, so learners that wait for room can continue early."""
    rows_a_fold: int = 1000
    """Rows written in one call: some 5 ms of the server's time, which other calls wait for."""
    lease_ms: int = 10_000
    """Time that a bucket stays untended after its keeper died. Renewed at a third of it."""
    expiry: Expiry = field(default_factory=Expiry)
    """The rows to delete."""


class PendingEntry(NamedTuple):
    """An entry that is still in the log, as far as a keeper needs it."""

    version: int
    size_bytes: int
    received_ms: int
    """By the keeper's clock, because the log keeps entries for followers that are live now."""
    places: Places
    """Rows that this entry was the first to change since they were written."""


def entries_to_fold(
    entries: Sequence[PendingEntry], size_bytes: int, now_ms: int, keeping: FoldPolicy
) -> int:
    """Return how many of the oldest entries are to be folded and trimmed now.

    0 until the oldest entry is too old, or all entries are too large. Then as many as free an
    eighth of the time or of the bytes, because one fold of many entries is cheaper than many folds.
    The last entry always stays, because it says how far the bucket's sources were read. At most
    `trim_bytes` are trimmed at once. That writes no row more often: each entry comes with the rows
    that it was the first to change. `size_bytes`: of all entries.
    """
    if not entries:
        return 0
    age_ms = now_ms - entries[0].received_ms
    if age_ms < keeping.keep_ms and size_bytes <= keeping.keep_bytes:
        return 0
    old_ms = now_ms - (keeping.keep_ms - keeping.keep_ms // 8)
    spared_bytes = keeping.keep_bytes - keeping.keep_bytes // 8
    count, freed_bytes = 0, 0
    for entry in itertools.islice(entries, len(entries) - 1):
        if entry.received_ms > old_ms and size_bytes - freed_bytes <= spared_bytes:
            break
        if count and freed_bytes + entry.size_bytes > keeping.trim_bytes:
            break
        freed_bytes += entry.size_bytes
        count += 1
    return count


@dataclass(slots=True)
class BucketLease:
    """One holding of one bucket."""

    token: str
    """Names this holding, so a late call of an earlier one is not taken for one of this."""
    renewed_ms: int
    folds: int = 0
    stocked: bool = False
    """Whether `entries` is the complete log up to the replica's position."""
    trimmed: int = 0
    """The version before the first of `entries`. This holding writes only rows that they changed.
    """
    entries: deque[PendingEntry] = field(default_factory=deque)
    size_bytes: int = 0
    """Bytes of all entries."""
    count: int = 0
    """Number of oldest entries that are being folded, and trimmed then; 0 between folds."""
    unwritten: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of those entries that are still to be written, by id: neighbours are in one sub-hash."""

    def moved(self, moved: Places) -> None:
        """Follow a compaction of the table, which moved row i to moved[i]."""
        self.unwritten = moved[self.unwritten]
        for index, entry in enumerate(self.entries):
            self.entries[index] = entry._replace(places=moved[entry.places])
