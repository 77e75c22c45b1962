"""Gives a living model more buckets: copies each bucket into its parts, then switches.

The rows of a bucket are split by the high bits of their ids. Its marks go to every part, because
each part has learned from the same offsets as the bucket. Learners work on during the copy. The
examples that they push to a bucket after its copy are not in the new buckets; but the marks there
are older, too, so learners read these examples again after the switch. Each example is therefore
learned once in the buckets that remain, and nothing has to be frozen.

A reshard that is interrupted before the switch has changed nothing for other processes. The switch
is `redis_backend.bucket_successor.BucketSuccessor.switch`; `bucket_generations.may_replace` decides
whether a reshard that paused may still switch.

*Refused:* fewer buckets. Rows could be joined, but marks of different buckets cannot.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots.bucket_copy import Halted, copy_bucket
from headrace.pserver.snapshots.restoration import check_buckets, in_pieces, rows_of
from headrace.pserver.snapshots.snapshot_errors import DoesNotFit
from headrace.pserver.snapshots.writer import SnapshotProgress, SnapshotSettings
from headrace.pserver.store import Shape, Store
from headrace.runtime.counted_nouns import counted


class Successor(Protocol):
    """The new buckets, which no process uses before the switch."""

    @property
    def shape(self) -> Shape:
        """The shape of the model after the switch."""

    def begin(self) -> None:
        """Claim the reshard, and remove what an interrupted one left."""

    def load(
        self, bucket: int, version: int, marks: Mapping[str, int], chunks: Iterable[FoldedRows]
    ) -> None:
        """Fill a new bucket, as Store.load does."""

    def switch(self) -> None:
        """Make the new buckets those of the model."""

    def release(self) -> None:
        """End the claim."""


def reshard(
    store: Store,
    successor: Successor,
    *,
    now_ms: Callable[[], int],
    stop: threading.Event,
    tell: Callable[[SnapshotProgress], None],
) -> int | None:
    """Copy every bucket into its parts, and switch; return the number of rows.

    None if `stop` was set before the switch. Raises DoesNotFit, BucketExists while another reshard
    runs, ModelExists while the buckets of an earlier one remain, StoreError.
    """
    old, new = store.shape(), successor.shape
    if new.buckets == old.buckets:
        raise DoesNotFit(f"expected more than {counted(old.buckets, 'bucket')}, got {new.buckets}")
    check_buckets(old.buckets, new.buckets)
    factor, rows = new.buckets // old.buckets, 0
    successor.begin()
    try:
        for bucket in range(old.buckets):
            replica, answer = copy_bucket(
                store,
                old,
                bucket,
                now_ms=now_ms,
                patience_ms=SnapshotSettings().patience_ms,
                halted=stop.is_set,
            )
            found = replica.table.everything().existing()
            del replica
            for part in range(bucket * factor, (bucket + 1) * factor):
                own = rows_of(found, new, part)
                successor.load(part, answer.version, answer.marks, in_pieces([own]))
            rows += found.ids.shape[0]
            tell(SnapshotProgress(bucket + 1, old.buckets, rows, 0))
        if stop.is_set():
            return None
        successor.switch()
    except Halted:
        return None
    finally:
        successor.release()
    return rows
