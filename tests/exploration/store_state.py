"""The states of the models of a store, and the store: pushes, folds, trims, late requests.

Rows are the offsets that they contain. The fences are the product's (`push_fence`,
`memory_store.refusal_of`).
"""

from functools import lru_cache
from typing import Any, NamedTuple

from headrace.pserver import memory_store, push_fence
from headrace.pserver.memory_store import BucketState
from headrace.pserver.store import Entry, Fold, OffsetSpan, Push, Trim

SOURCE = "t/0"
BATCHES = 2
_REVERSIBLE = 2
"""Writes of a bucket that a failover can lose."""
_NO_ROWS: Any = None

Offsets = tuple[int, ...]
"""Offsets that rows contain, each as often as it was learned; ascending."""


class LogEntry(NamedTuple):
    """One entry of a log."""

    version: int
    nonce: Any
    previous: Any
    gains: Any


class Bucket(NamedTuple):
    """One bucket, without its earlier states."""

    version: int = 0
    nonce: Any = 0
    previous: Any = 0
    trimmed: int = 0
    mark: int = 0
    log: tuple[LogEntry, ...] = ()
    rows: Offsets = ()
    rows_version: int = 0
    keeper: str = ""
    lease_ends: bool = False
    folds: int = 0


class Flight(NamedTuple):
    """A push until it is answered."""

    start: int
    stop: int
    nonce: Any
    gains: Offsets


class LearnerState(NamedTuple):
    """One learner, which reads the partition."""

    position: int
    acknowledged: tuple[int, ...]
    cursors: tuple[int, ...]
    pending: tuple[Offsets, ...]
    flights: tuple[Flight | None, ...]
    owns: bool = True
    """Whether it reads on; if not, it only sends what it has."""


class Follower(NamedTuple):
    """A replica of the first bucket: a keeper's, or the reader's."""

    version: int = -1
    nonce: Any = 0
    rows: Offsets = ()
    token: str = ""
    folds: int = 0
    folded: int = -1
    """Version of the last fold; -1: none."""
    trimmed: int = 0


class State(NamedTuple):
    """Everything."""

    buckets: tuple[Bucket, ...]
    before: tuple[tuple[Bucket, ...], ...]
    """Of each bucket, the states that a failover can bring back."""
    learners: tuple[LearnerState, ...]
    keepers: tuple[Follower, ...]
    """In no order: they differ in nothing but their states."""
    reader: Follower | None
    late: frozenset[tuple[object, ...]]
    sent: tuple[int, ...]
    """Pushes of each bucket so far."""
    claims: int
    faults: int


def content_of(bucket: Bucket) -> Offsets | None:
    """Return what a fresh copy contains; None if entries are missing that its rows lack."""
    if bucket.trimmed > bucket.rows_version:
        return None
    gains = [entry.gains for entry in bucket.log if entry.version > bucket.rows_version]
    return tuple(sorted([*bucket.rows, *(offset for each in gains for offset in each)]))


def put(state: State, place: int, bucket: Bucket) -> State:
    """Write a bucket; a failover can bring the last states back."""
    was = state.buckets[place]
    before = (*state.before[place], was)[-_REVERSIBLE:]
    return state._replace(
        buckets=changed(state.buckets, place, bucket), before=changed(state.before, place, before)
    )


def changed(items: tuple[Any, ...], place: int, item: object) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


@lru_cache(None)
def push_of(place: int, start: int, stop: int, nonce: Any) -> Push:
    return Push(place, (OffsetSpan(SOURCE, start, stop),), nonce, b"")


def pushed(state: State, place: int, flight: Flight) -> State:
    bucket, push = state.buckets[place], push_of(place, *flight[:3])
    marks = {SOURCE: bucket.mark}
    if not push_fence.passes_fence(push, marks):
        return state
    entry = LogEntry(bucket.version + 1, flight.nonce, bucket.nonce, flight.gains)
    now = bucket._replace(
        version=entry.version,
        nonce=entry.nonce,
        previous=entry.previous,
        mark=push_fence.marks_after(push, marks).get(SOURCE, 0),
        log=(*bucket.log, entry),
    )
    return put(state, place, now)


@lru_cache(None)
def _bucket_state(bucket: Bucket) -> BucketState:
    """Return the part of a bucket that the fence of keepers looks at."""
    return BucketState(
        bucket.nonce,
        bucket.version,
        trimmed=bucket.trimmed,
        log=entries_of(bucket.log),
        keeper=bucket.keeper,
        lease_ms=0 if bucket.lease_ends else 1,
        folds=bucket.folds,
    )


@lru_cache(None)
def entries_of(log: tuple[LogEntry, ...]) -> list[Entry]:
    return [Entry(e.version, e.nonce, e.previous, e.gains) for e in log]


def folded(state: State, words: tuple[str, int, int, Any], rows: Offsets) -> State | None:
    bucket, fold = state.buckets[0], Fold(0, *words, _NO_ROWS)
    if memory_store.refusal_of(_bucket_state(bucket), fold, fold.number - 1, 0) is not None:
        return None
    now = bucket._replace(rows=rows, rows_version=fold.version, folds=fold.number)
    return put(state, 0, now)


def trimmed(state: State, words: tuple[Any, ...]) -> State | None:
    bucket, trim = state.buckets[0], Trim(0, *words)
    if memory_store.refusal_of(_bucket_state(bucket), trim, trim.folds, 0) is not None:
        return None
    if trim.through <= bucket.trimmed:
        return state
    log = tuple(entry for entry in bucket.log if entry.version > trim.through)
    return put(state, 0, bucket._replace(log=log, trimmed=trim.through))


def arrived(state: State, request: tuple[Any, ...]) -> State:
    kind, *words = request
    if kind == "push":
        return pushed(state, *words)
    return (folded if kind == "fold" else trimmed)(state, *words) or state
