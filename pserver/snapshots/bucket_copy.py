"""Copies one bucket with its marks as of the same version, while all processes work on.

Marks and version of a bucket are read in one call. Its copy then follows the log to exactly that
version, and no further: its rows have learned exactly the offsets before the marks.
"""

import time
from collections.abc import Callable

from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.replica.replica import BucketRecopied, Replica, Stale
from headrace.pserver.store import ENTRIES_A_POLL, BucketAnswer, Shape, Store

_PAUSE_S = 0.05
"""Pause before a node that did not answer is asked again."""


class Halted(Exception):
    """The copy was stopped."""


def copy_bucket(
    store: Store,
    shape: Shape,
    bucket: int,
    *,
    now_ms: Callable[[], int],
    patience_ms: int,
    halted: Callable[[], bool],
) -> tuple[Replica, BucketAnswer]:
    """Return a copy of a bucket, and its marks as of the same version.

    Raises Halted, and StoreError if the bucket cannot be copied for `patience_ms`.
    """
    replica = Replica(store, shape, buckets=[bucket])
    goal: BucketAnswer | None = None
    moved_ms = now_ms()
    while True:
        if halted():
            raise Halted
        limit = ENTRIES_A_POLL
        if goal is not None:
            limit = min(limit, goal.version - replica.position(bucket).version)
        changes = replica.poll(limit)
        error = next((each.error for each in changes if isinstance(each, Stale)), None)
        if error is None and replica.complete:
            if goal is None or not changes or any(isinstance(e, BucketRecopied) for e in changes):
                # a goal that comes no closer is of a history that was lost
                [marks] = store.marks([bucket])
                goal, error = (None, marks) if isinstance(marks, Unreachable) else (marks, None)
            if goal is not None:
                position = replica.position(bucket)
                if (position.version, position.nonce) == (goal.version, goal.nonce):
                    return replica, goal
                if position.version >= goal.version:
                    goal = None
        if error is None:
            moved_ms = now_ms()
        elif now_ms() - moved_ms > patience_ms:
            raise StoreError(
                f"bucket {bucket} could not be copied for {patience_ms / 1000:g} s: {error}"
            ) from error
        else:
            time.sleep(_PAUSE_S)
