"""Snapshots of running models: exact rows, through kills at any moment."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.pserver.errors import MissingBucket, StoreError, Unreachable
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.snapshots.catalog import find_snapshot, list_snapshots
from headrace.pserver.snapshots.snapshot_errors import NoSnapshot
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import verify
from tests.pserver.snapshots.broken_stores import Stores, put_back
from tests.pserver.snapshots.snapshot_world import (
    BUCKETS,
    NOW_MS,
    DyingShelf,
    History,
    Killed,
    Lively,
    busy_keeper,
    rows_in,
    take,
    taken,
)


def test_a_snapshot_taken_during_pushes_folds_and_trims_plus_kafka_gives_exact_rows(
    stores: Stores, storage: SnapshotStorage
) -> None:
    seed = random.randrange(1 << 30)
    history = stores.history(5, seed=seed)
    store, shape = history.store, history.shape
    keeper = busy_keeper(store, shape, seed)
    lively = Lively(history, keeper, random.Random(seed))
    manifest = taken(lively, storage, parallel=2)
    assert lively.bustles > 10, f"seed {seed}"
    assert len({each.marks["topic/0"] for each in manifest.files}) > 1, f"seed {seed}"
    history.push_all(3)

    elsewhere = stores.shape("elsewhere")
    target = stores.new(elsewhere)
    restored = put_back(target, storage, manifest, elsewhere)
    assert restored.buckets == tuple(range(BUCKETS))
    assert rows_in(target, elsewhere) == history.truth_before(manifest), f"seed {seed}"
    assert restored.rows == manifest.rows == len(history.truth_before(manifest)), f"seed {seed}"
    history.supply(target, elsewhere)
    assert rows_in(target, elsewhere) == history.truth(), f"seed {seed}"
    assert target.shape() == elsewhere


def test_checksums_of_a_snapshot_equal_those_of_a_replica_at_its_version(
    stores: Stores, storage: SnapshotStorage
) -> None:
    history = stores.history(6)
    store, shape = history.store, history.shape
    manifest = taken(store, storage)
    replica = Replica(store, shape)
    while not replica.complete:
        replica.poll()
    for each in manifest.files:
        position = replica.position(each.bucket)
        assert (each.version, each.nonce) == (position.version, position.nonce.hex())
        assert each.checksum == replica.checksum(each.bucket)
        assert (each.event_ms, each.append_ms) == (position.event_ms, position.append_ms)
    assert verify(storage, manifest, stop=threading.Event(), tell=lambda _: None) == []


@pytest.mark.parametrize("with_shape", [False, True])
def test_a_shard_that_came_back_empty_gets_its_buckets_and_the_others_are_untouched(
    stores: Stores, storage: SnapshotStorage, *, with_shape: bool
) -> None:
    history = stores.history(4)
    store, shape = history.store, history.shape
    busy_keeper(store, shape, 0).step()
    manifest = taken(store, storage)
    history.push_all(4)
    untouched = store.marks([0, 2])
    store = stores.lose(store, shape, [1, 3], with_shape=with_shape)
    if not with_shape:
        with pytest.raises(MissingBucket, match="bucket"):
            store.marks([1])
    restored = put_back(store, storage, manifest, shape)
    assert restored.buckets == (1, 3)
    assert store.shape() == shape
    assert store.marks([0, 2]) == untouched
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()
    assert put_back(store, storage, manifest, shape).buckets == ()


def test_a_snapshot_writer_killed_at_any_file_leaves_no_visible_snapshot(
    memory: Stores, tmp_path: Path
) -> None:
    history = memory.history(3)
    shape = history.shape
    for kind, url in (("folder", str(tmp_path)), ("objects", f"memory://{shape.model}")):
        storage = SnapshotStorage(url)
        before = taken(history.store, storage, at_ms=NOW_MS)
        for dies_at in range(BUCKETS + 2):  # begin, a file each, the manifest
            with pytest.raises(Killed):
                take(history.store, DyingShelf(url, dies_at), at_ms=NOW_MS + 1000 + dies_at)
            assert [each.name for each in list_snapshots(storage)] == [before.name], dies_at
            assert find_snapshot(storage, shape.model, None) == before
        assert len(storage.half_written()) == BUCKETS + 1 - (kind == "objects")
        after = taken(history.store, storage, at_ms=NOW_MS + 9000)
        assert find_snapshot(storage, shape.model, None) == after
    # killed when everything was written and not yet renamed
    (tmp_path / after.name).rename(tmp_path / f".partial-{after.name}")
    assert [each.name for each in list_snapshots(SnapshotStorage(str(tmp_path)))] == [before.name]


def test_a_stopped_or_failed_snapshot_writer_removes_its_files(
    memory: Stores, storage: SnapshotStorage
) -> None:
    history = memory.history(2)
    store: Any = history.store
    shape = history.shape
    stop = threading.Event()
    assert take(store, storage, stop=stop, tell=lambda _: stop.set()) is None
    store.empty(2)
    with pytest.raises(MissingBucket):
        take(store, storage)
    assert list_snapshots(storage) == []
    assert storage.half_written() == []
    with pytest.raises(NoSnapshot, match=shape.model):
        find_snapshot(storage, shape.model, None)


class Deaf:
    """A store with a node that does not answer, for some calls."""

    def __init__(self, store: Any, calls: float) -> None:
        self._store, self.calls = store, calls

    def poll(self, after: Any, limit: int) -> Any:
        self.calls -= 1
        if self.calls >= 0 and 1 in after:
            return [Unreachable("node 2 does not answer")]
        return self._store.poll(after, limit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_snapshot_waits_for_a_node_that_does_not_answer_but_not_for_ever(
    memory: Stores, storage: SnapshotStorage
) -> None:
    history = memory.history(2)
    store = history.store
    assert taken(Deaf(store, 5), storage).rows > 0
    with pytest.raises(StoreError, match=r"bucket 1 .*node 2 does not answer"):
        take(Deaf(store, float("inf")), storage, patience_ms=-1)


class Fickle:
    """A store of one bucket that goes back once its marks are read."""

    def __init__(self, early: MemoryStore, store: MemoryStore, revert: Callable[[], None]) -> None:
        self._early, self._store, self._revert = early, store, revert
        self.reverted = False

    def marks(self, buckets: Any) -> Any:
        answers = self._store.marks(buckets)
        if not self.reverted:
            self._revert()
            self.reverted = True
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store if self.reverted else self._early, name)


@pytest.mark.parametrize("pushes_after", [0, 1, 2, 5])
def test_a_bucket_that_goes_back_during_a_snapshot_is_written_in_its_new_state(
    memory: Stores, storage: SnapshotStorage, pushes_after: int
) -> None:
    shape = memory.shape("fickle", 1)
    store, early = memory.made(shape), memory.made(shape)
    history = History(store, shape, seed=1)
    history.push_all(2)
    then = store.checkpoint(0)
    early.revert(0, then)
    history.push_all(2)

    def revert() -> None:
        store.revert(0, then)
        other = History(store, shape, seed=2)
        other.pushers[0].offset = then.marks["topic/0"]
        other.push_all(pushes_after)

    manifest = taken(Fickle(early, store, revert), storage)
    assert manifest.files[0].version == 2 + pushes_after
    [standing] = store.marks([0])
    assert manifest.files[0].marks == dict(standing.marks)
    target = memory.new(shape)
    put_back(target, storage, manifest, shape)
    assert rows_in(target, shape) == rows_in(store, shape)
