"""Expiry: deletes the rows that were not seen for too long, and the oldest rows above a cap.

Time is event time, taken from the rows: the newest `last_seen` of a bucket is its present. An idle
stream therefore expires nothing, and a replay of history expires the same rows as the stream did.
Rows that were never seen, such as those of dense layers, have no age: they stay, and do not count.

Above the cap, a sixteenth of it is deleted at once, so the next row does not exceed it again.

An operator may set another cap in the store (`Store.limit_rows`), where several models share its
memory. The lower cap counts. It is enforced here because only keepers make stored rows and see all
of them. *Refused:* a limit in the functions of the store. They do not read the rows in a push, and
could only refuse all of it, which would stop the model. *Refused:* an admission that stops at the
limit. Learners with only some rows do not know the number of all, most specs have no rare rows for
other ids, and a model without new ids becomes stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.store import Shape

if TYPE_CHECKING:
    from headrace.pserver.rows.row_codec import FoldedRows

ROWS_AN_ENTRY = 1 << 16
"""Rows of one bucket deleted at a time: less than a MB in the log."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """Limits to the growth of a model. Declared in its spec; nothing is deleted by default."""

    after_s: int = 0
    """Age in seconds at which a row is deleted; 0: never."""
    most_rows: int = 0
    """Rows of the model, shared evenly by its buckets; 0: unlimited."""
    interval_ms: int = 10_000
    """Between two scans of all rows, which take some 50 ms a million rows."""

    def __bool__(self) -> bool:
        return self.after_s > 0 or self.most_rows > 0

    def within(self, limit: int) -> Expiry:
        """Return the expiry of a model that may have so many rows; 0: no limit."""
        if not limit or 0 < self.most_rows <= limit:
            return self
        return replace(self, most_rows=limit)


class ExpiredRows(NamedTuple):
    """The rows of one bucket to delete."""

    bucket: int
    places: npt.NDArray[np.int64]
    """Indexes of the rows, ascending by id; shape (n,)."""
    beyond: int
    """Rows among them that are not too old, only too many."""


def expired(
    last_seen: npt.NDArray[np.uint32], after_s: int, most_rows: int
) -> npt.NDArray[np.int64]:
    """Return the indexes of the rows of one bucket to delete, ascending.

    last_seen: (n,) event time in seconds; 0 for rows that were never seen. most_rows: of this
    bucket. Both limits are as in Expiry; 0 means no limit.
    """
    seen = np.flatnonzero(last_seen)
    if not seen.shape[0]:
        return seen
    times = last_seen[seen].astype(np.int64)
    goes = np.zeros(seen.shape[0], np.bool_)
    if after_s:
        goes = times < times.max() - after_s
    stay = seen.shape[0] - int(goes.sum())
    if most_rows and stay > most_rows:
        goes[np.argsort(times, kind="stable")[: seen.shape[0] - (most_rows - most_rows // 16)]] = (
            True
        )
    return seen[goes]


def expired_rows(rows: FoldedRows, shape: Shape, expiry: Expiry) -> Iterator[ExpiredRows]:
    """Yield the buckets that have rows to delete; places are indexes into `rows`."""
    buckets = shape.bucket_of(rows.ids).astype(np.uint16)
    order = np.argsort(buckets, kind="stable")
    starts = np.searchsorted(buckets[order], np.arange(shape.buckets + 1))
    most_rows = expiry.most_rows and max(1, expiry.most_rows // shape.buckets)
    for bucket in range(shape.buckets):
        here = order[starts[bucket] : starts[bucket + 1]]
        times = rows.last_seen[here]
        going = here[expired(times, expiry.after_s, most_rows)]
        if not going.shape[0]:
            continue
        beyond = going.shape[0] if most_rows else 0
        if beyond and expiry.after_s:
            beyond -= expired(times, expiry.after_s, 0).shape[0]
        going = going[:ROWS_AN_ENTRY]
        places = going[np.argsort(rows.ids[going])]
        yield ExpiredRows(bucket, places, min(beyond, going.shape[0]))
