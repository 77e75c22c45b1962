"""What a keeper remembers of a bucket it holds, and when entries of its log are to go."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.pserver.keeper.expiry import Expiry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.pserver.rows import Places


@dataclass(frozen=True, slots=True)
class FoldPolicy:
    """When to fold and trim, and how buckets are shared."""

    keep_ms: int = 60_000
    """How long an entry stays for followers: a server that was away for less need not copy."""
    keep_bytes: int = 8 << 20
    """Of a bucket's log, if that is less: what the store's memory can spare, over the buckets.
    Well below the size at which learners begin to wait."""
    trim_bytes: int = 256 << 10
    """Of a bucket's log, folded and trimmed at a time, but for a larger entry: a long log becomes
    shorter step by step, and who waits for room need not wait for all of it."""
    rows_a_fold: int = 1000
    """Rows written in one call, some 5 ms of the server's time: others wait no longer than that."""
    lease_ms: int = 10_000
    """How long a bucket stays untended after its keeper died. Renewed at a third of it."""
    expiry: Expiry = field(default_factory=Expiry)
    """Which rows are deleted."""


class PendingEntry(NamedTuple):
    """What a keeper remembers of an entry that is still in the log."""

    version: int
    size_bytes: int
    received_ms: int
    """By the keeper's clock: the log keeps an entry for followers that are live now."""
    places: Places
    """Rows that it was the first to touch since they were written."""


def entries_to_fold(
    entries: Sequence[PendingEntry], size_bytes: int, now_ms: int, keeping: FoldPolicy
) -> int:
    """Return how many of the oldest entries, of that size in all, are to be folded and trimmed now.

    None until the oldest is too old or all are too large; then so many that an eighth of the time
    or of the bytes becomes free, since one fold of many entries' rows is cheaper than many folds.
    Never the last one, which says how far the bucket's sources were read. And not more than
    `trim_bytes` at once, by which no row is written more often: an entry is followed by the rows
    that it was the first to touch.
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
    """Names this holding: a late call of an earlier one is not taken for one of this."""
    renewed_ms: int
    folds: int = 0
    stocked: bool = False
    """Whether `entries` is the whole log up to the replica's position."""
    trimmed: int = 0
    """The version before the first of `entries`: their rows are all that this holding writes."""
    entries: deque[PendingEntry] = field(default_factory=deque)
    size_bytes: int = 0
    """Of all entries."""
    count: int = 0
    """How many of the oldest entries are being folded, to be trimmed then; 0: none."""
    unwritten: Places = field(default_factory=lambda: np.zeros(0, np.int64))
    """The rows of those that are still to be written, by id: neighbours lie in one sub-hash."""

    def moved(self, moved: Places) -> None:
        """Rows of the table went from place i to moved[i]."""
        self.unwritten = moved[self.unwritten]
        for index, entry in enumerate(self.entries):
            self.entries[index] = entry._replace(places=moved[entry.places])
