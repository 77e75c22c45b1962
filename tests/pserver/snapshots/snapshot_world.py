"""Models to take snapshots of: pushed to, folded and trimmed while they are copied."""

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, pack
from headrace.pserver.rows.row_codec import StoredRows
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.writer import SnapshotFacts, SnapshotSettings, write_snapshot
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push, Shape, Store
from tests.pserver.rows.entries import SOURCE, WIDTH, Pusher, unpacked
from tests.pserver.rows.truth import Row, rows_of, truth

BUCKETS = 4
HOUR_MS = 3_600_000
NOW_MS = 1_795_000_000_000


class Killed(BaseException):
    """kill -9: the process does nothing after it."""


class History:
    """Pushes to every bucket, as of learners of one partition; all of them are kept."""

    def __init__(self, store: Store, shape: Shape, seed: int = 0) -> None:
        self.store, self.shape = store, shape
        self.pushers = [Pusher(bucket, shape.buckets, seed) for bucket in range(shape.buckets)]
        self.pushed: list[list[Push]] = [[] for _ in range(shape.buckets)]

    def push(self, bucket: int) -> None:
        push = self.pushers[bucket].next()
        [answer] = self.store.push([push])
        assert isinstance(answer, BucketAnswer)
        assert answer.covers(push.spans)
        self.pushed[bucket].append(push)

    def push_all(self, rounds: int) -> None:
        for _ in range(rounds):
            for bucket in range(self.shape.buckets):
                self.push(bucket)

    def truth(self) -> dict[int, Row]:
        return truth(push for pushes in self.pushed for push in pushes)

    def truth_before(self, manifest: Manifest) -> dict[int, Row]:
        """Rows that have learned exactly the offsets before the marks of a snapshot."""
        return truth(
            push
            for bucket, pushes in enumerate(self.pushed)
            for push in pushes
            if push.spans[0].stop <= manifest.files[bucket].marks.get(SOURCE, 0)
        )

    def supply(self, store: Store, shape: Shape) -> None:
        """Push the offsets beyond each bucket's marks, as a learner with Kafka does."""
        factor = shape.buckets // self.shape.buckets
        for bucket in range(shape.buckets):
            [standing] = store.marks([bucket])
            assert isinstance(standing, BucketAnswer)
            mark = standing.marks.get(SOURCE, 0)
            lacking = [
                each for each in self.pushed[bucket // factor] if each.spans[0].start >= mark
            ]
            assert not lacking or lacking[0].spans[0].start == mark
            for push in lacking:
                [answer] = store.push([_part(push, shape, bucket)])
                assert isinstance(answer, BucketAnswer)
                assert answer.covers(push.spans)


def _part(push: Push, shape: Shape, bucket: int) -> Push:
    header, deltas = unpacked(push.blob)
    own = deltas.chosen(shape.bucket_of(deltas.ids) == bucket)
    span = push.spans[0]
    head = EntryHeader(WIDTH, own.ids.shape[0], header.event_ms, header.append_ms, header.reached)
    return Push(
        bucket,
        (OffsetSpan(SOURCE, span.start, span.stop),),
        push.nonce,
        pack(head, RowDeltas(*own)),
    )


def rows_in(store: Store, shape: Shape) -> dict[int, Row]:
    """All rows of a model, read by a replica."""
    replica = Replica(store, shape)
    while not replica.complete:
        replica.poll()
    found: dict[int, Row] = {}
    for bucket in range(shape.buckets):
        found |= rows_of(replica, bucket)
    return found


def busy_keeper(store: Store, shape: Shape, seed: int) -> Keeper:
    """A keeper that folds and trims all but a few entries, at every step."""
    dice, clock = random.Random(seed), iter(range(0, 1 << 40, 50))
    return Keeper(
        store,
        shape,
        name="keeper",
        keeping=FoldPolicy(keep_ms=200, keep_bytes=600, rows_a_fold=3, lease_ms=100_000),
        now_ms=lambda: next(clock),
        draw_nonce=lambda: dice.randbytes(8),
    )


class Lively:
    """A store in which pushes, folds and trims happen before every call of the copying process."""

    def __init__(self, history: History, keeper: Keeper, dice: random.Random) -> None:
        self._history, self._keeper, self._dice = history, keeper, dice
        self._lock = threading.Lock()
        self.bustles = 0

    def poll(self, after: Mapping[int, int], limit: int) -> Any:
        self._bustle()
        return self._history.store.poll(after, limit)

    def marks(self, buckets: Sequence[int]) -> Any:
        self._bustle()
        return self._history.store.marks(buckets)

    def rows(self, bucket: int) -> Iterator[StoredRows]:
        for chunk in self._history.store.rows(bucket):
            self._bustle()
            yield chunk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history.store, name)

    def _bustle(self) -> None:
        with self._lock:
            self.bustles += 1
            for _ in range(self._dice.randint(0, 6)):
                if self._dice.random() < 0.7:
                    self._history.push(self._dice.randrange(self._history.shape.buckets))
                else:
                    self._keeper.step()


class DyingShelf(SnapshotStorage):
    """The storage of a process that is killed at its n-th operation, before it takes effect."""

    def __init__(self, url: str, dies_at: int) -> None:
        super().__init__(url)
        self._left = dies_at

    def begin(self, name: str) -> None:
        self._act()
        super().begin(name)

    def write(self, name: str, file: str, blob: bytes) -> None:
        self._act()
        super().write(name, file, blob)

    def abandon(self, name: str) -> None:
        self._act()
        super().abandon(name)

    def _act(self) -> None:
        if self._left <= 0:
            raise Killed
        self._left -= 1


def take(
    store: Any,
    storage: SnapshotStorage,
    *,
    at_ms: int = NOW_MS,
    parallel: int = 1,
    stop: threading.Event | None = None,
    tell: Callable[[Any], None] = lambda _: None,
    patience_ms: int = 60_000,
) -> Manifest | None:
    """Take a snapshot, with a clock that never advances."""
    return write_snapshot(
        store,
        storage,
        SnapshotFacts("1.2.3", 8),
        now_ms=lambda: at_ms,
        token="0a1b",
        stop=stop or threading.Event(),
        tell=tell,
        writing=SnapshotSettings(parallel, patience_ms),
    )


def taken(store: Any, storage: SnapshotStorage, **options: Any) -> Manifest:
    """Take a snapshot that succeeds."""
    manifest = take(store, storage, **options)
    assert manifest is not None
    return manifest
