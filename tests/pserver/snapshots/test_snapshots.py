"""Snapshots of live models, and restores from them: exact rows, through kills at any moment."""

from __future__ import annotations

import itertools
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pserver.errors import (
    BucketExists,
    MissingBucket,
    MissingModel,
    ModelExists,
    StoreError,
    Unreachable,
)
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.snapshots.catalog import find_snapshot, list_snapshots
from headrace.pserver.snapshots.restoration import fill_with_nothing, restore
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot, DoesNotFit, NoSnapshot
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import verify
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import WIDTH
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.pserver.snapshots.manifest import Manifest
    from headrace.pserver.snapshots.restoration import RestoreResult


class Stores:
    """Creates stores of one kind, and breaks them."""

    def __init__(self, url: str | None, fresh_name: Callable[[str], str]) -> None:
        self._url, self._fresh_name = url, fresh_name
        self._open: list[RedisStore] = []

    def shape(self, stem: str = "snap", buckets: int = BUCKETS) -> Shape:
        return Shape(self._fresh_name(stem), buckets, WIDTH, "fingerprint", "the spec")

    def new(self, shape: Shape, sub_hashes: int = 8) -> Any:
        if self._url is None:
            dice, ticks = random.Random(0), itertools.count()
            return MemoryStore(clock_ms=lambda: next(ticks), nonces=lambda: dice.randbytes(8))
        store = open_store(self._url, shape.model, StoreSettings(sub_hashes=sub_hashes))
        self._open.append(store)
        return store

    def made(self, shape: Shape) -> Any:
        store = self.new(shape)
        store.create(shape)
        return store

    def lose(self, store: Any, shape: Shape, buckets: list[int], *, with_shape: bool) -> Any:
        """A shard comes back empty; return the store as a new process sees it."""
        if self._url is None:
            for bucket in buckets:
                store.empty(bucket)
            if with_shape:
                store._shape, store._complete = None, False
            return store
        names = ("log", "marks", *(f"rows:{n}" for n in range(8)))
        keys = [store.key(bucket, name) for bucket in buckets for name in names]
        keys += [f"{{{shape.model}}}:shape".encode()] if with_shape else []
        replies = store.nodes.run([Call(key, ("DEL", key)) for key in keys])
        assert not any(isinstance(reply, Exception) for reply in replies), replies
        return self.new(shape, sub_hashes=8)

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.servers)])
def stores(request: pytest.FixtureRequest, fresh_name: Callable[[str], str]) -> Iterator[Stores]:
    url = request.getfixturevalue("valkey") if request.param == "valkey" else None
    stores = Stores(url, fresh_name)
    yield stores
    stores.close()


@pytest.fixture
def memory(fresh_name: Callable[[str], str]) -> Stores:
    return Stores(None, fresh_name)


@pytest.fixture
def shelf(tmp_path: Path) -> SnapshotStorage:
    return SnapshotStorage(str(tmp_path / "shelf"))


def put_back(
    store: Any, shelf: SnapshotStorage, manifest: Manifest, shape: Shape, **options: Any
) -> RestoreResult:
    return restore(
        store, shelf, manifest, shape, stop=threading.Event(), tell=lambda _: None, **options
    )


def test_a_snapshot_taken_during_pushes_folds_and_trims_plus_kafka_gives_exact_rows(
    stores: Stores, shelf: SnapshotStorage
) -> None:
    seed = random.randrange(1 << 30)
    shape = stores.shape()
    store = stores.made(shape)
    history = History(store, shape, seed)
    history.push_all(5)
    keeper = busy_keeper(store, shape, seed)
    lively = Lively(history, keeper, random.Random(seed))
    manifest = taken(lively, shelf, parallel=2)
    assert lively.bustles > 10, f"seed {seed}"
    assert len({each.marks["topic/0"] for each in manifest.files}) > 1, f"seed {seed}"
    history.push_all(3)

    elsewhere = stores.shape("elsewhere")
    target = stores.new(elsewhere)
    restored = put_back(target, shelf, manifest, elsewhere)
    assert restored.buckets == tuple(range(BUCKETS))
    assert rows_in(target, elsewhere) == history.truth_before(manifest), f"seed {seed}"
    assert restored.rows == manifest.rows == len(history.truth_before(manifest)), f"seed {seed}"
    history.supply(target, elsewhere)
    assert rows_in(target, elsewhere) == history.truth(), f"seed {seed}"
    assert target.shape() == elsewhere


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", [8, pytest.param(400, marks=pytest.mark.long)])
def test_many_lively_snapshots_in_memory_are_exact(
    memory: Stores, tmp_path: Path, seeds: int
) -> None:
    for seed in range(seeds):
        shape = memory.shape()
        history = History(memory.made(shape), shape, seed)
        keeper = busy_keeper(history.store, shape, seed)
        shelf = SnapshotStorage(str(tmp_path / str(seed)))
        manifest = taken(Lively(history, keeper, random.Random(seed)), shelf, parallel=1 + seed % 3)
        target = memory.new(shape)
        put_back(target, shelf, manifest, shape)
        assert rows_in(target, shape) == history.truth_before(manifest), f"seed {seed}"
        history.supply(target, shape)
        assert rows_in(target, shape) == history.truth(), f"seed {seed}"


def test_checksums_of_a_snapshot_equal_those_of_a_replica_at_its_version(
    stores: Stores, shelf: SnapshotStorage
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    History(store, shape).push_all(6)
    manifest = taken(store, shelf)
    replica = Replica(store, shape)
    while not replica.complete:
        replica.poll()
    for each in manifest.files:
        position = replica.position(each.bucket)
        assert (each.version, each.nonce) == (position.version, position.nonce.hex())
        assert each.checksum == replica.checksum(each.bucket)
        assert (each.event_ms, each.append_ms) == (position.event_ms, position.append_ms)
    assert verify(shelf, manifest, stop=threading.Event(), tell=lambda _: None) == []


def test_a_shard_that_came_back_empty_gets_its_buckets_and_the_others_are_untouched(
    stores: Stores, shelf: SnapshotStorage
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    history = History(store, shape)
    history.push_all(4)
    manifest = taken(store, shelf)
    history.push_all(4)
    untouched = store.marks([0, 2])
    store = stores.lose(store, shape, [1, 3], with_shape=False)
    with pytest.raises(MissingBucket, match="bucket"):
        store.marks([1])
    restored = put_back(store, shelf, manifest, shape)
    assert restored.buckets == (1, 3)
    assert store.marks([0, 2]) == untouched
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()
    assert put_back(store, shelf, manifest, shape).buckets == ()


def test_a_restore_brings_back_a_shape_that_was_lost_with_its_shard(
    stores: Stores, shelf: SnapshotStorage
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    history = History(store, shape)
    history.push_all(4)
    busy_keeper(store, shape, 0).step()
    manifest = taken(store, shelf)
    history.push_all(2)
    store = stores.lose(store, shape, [2], with_shape=True)
    put_back(store, shelf, manifest, shape)
    assert store.shape() == shape
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()


@pytest.mark.parametrize("factor", [1, 4])
def test_a_restore_into_another_name_and_more_buckets_continues_exactly(
    stores: Stores, shelf: SnapshotStorage, factor: int
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    history = History(store, shape)
    history.push_all(6)
    manifest = taken(store, shelf)
    history.push_all(3)
    copy = Shape(stores.shape("copy").model, factor * BUCKETS, WIDTH, "another", "another spec")
    target = stores.new(copy)
    put_back(target, shelf, manifest, copy)
    assert rows_in(target, copy) == history.truth_before(manifest)
    history.supply(target, copy)
    assert rows_in(target, copy) == history.truth()
    assert target.shape() == copy
    assert store.shape() == shape


def test_a_snapshot_writer_killed_at_any_file_leaves_no_visible_snapshot(
    memory: Stores, tmp_path: Path
) -> None:
    shape = memory.shape()
    history = History(memory.made(shape), shape)
    history.push_all(3)
    for kind, url in (("folder", str(tmp_path)), ("objects", f"memory://{shape.model}")):
        shelf = SnapshotStorage(url)
        before = taken(history.store, shelf, at_ms=NOW_MS)
        for dies_at in range(BUCKETS + 2):  # begin, a file each, the manifest
            with pytest.raises(Killed):
                take(history.store, DyingShelf(url, dies_at), at_ms=NOW_MS + 1000 + dies_at)
            assert [each.name for each in list_snapshots(shelf)] == [before.name], dies_at
            assert find_snapshot(shelf, shape.model, None) == before
        assert len(shelf.half_written()) == BUCKETS + 1 - (kind == "objects")
        after = taken(history.store, shelf, at_ms=NOW_MS + 9000)
        assert find_snapshot(shelf, shape.model, None) == after
    # killed when everything was written and not yet renamed
    (tmp_path / after.name).rename(tmp_path / f".partial-{after.name}")
    assert [each.name for each in list_snapshots(SnapshotStorage(str(tmp_path)))] == [before.name]


def test_a_stopped_or_failed_snapshot_writer_removes_its_files(
    memory: Stores, shelf: SnapshotStorage
) -> None:
    shape = memory.shape()
    store = memory.made(shape)
    History(store, shape).push_all(2)
    stop = threading.Event()
    assert take(store, shelf, stop=stop, tell=lambda _: stop.set()) is None
    store.empty(2)
    with pytest.raises(MissingBucket):
        take(store, shelf)
    assert list_snapshots(shelf) == []
    assert shelf.half_written() == []
    with pytest.raises(NoSnapshot, match=shape.model):
        find_snapshot(shelf, shape.model, None)


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
    memory: Stores, shelf: SnapshotStorage
) -> None:
    shape = memory.shape()
    store = memory.made(shape)
    History(store, shape).push_all(2)
    assert taken(Deaf(store, 5), shelf).rows > 0
    with pytest.raises(StoreError, match=r"bucket 1 .*node 2 does not answer"):
        take(Deaf(store, float("inf")), shelf, patience_ms=-1)


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
    memory: Stores, shelf: SnapshotStorage, pushes_after: int
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

    manifest = taken(Fickle(early, store, revert), shelf)
    assert manifest.files[0].version == 2 + pushes_after
    [standing] = store.marks([0])
    assert manifest.files[0].marks == dict(standing.marks)
    target = memory.new(shape)
    put_back(target, shelf, manifest, shape)
    assert rows_in(target, shape) == rows_in(store, shape)


class Mortal:
    """A store whose caller is killed at the n-th call, or within the rows of a load."""

    def __init__(self, store: Any, dies_at: int) -> None:
        self._store, self._left = store, dies_at
        self._lock = threading.Lock()

    def begin(self, shape: Shape) -> None:
        self._live()
        self._store.begin(shape)

    def load(self, bucket: int, version: int, marks: Any, chunks: Any) -> None:
        self._live()
        self._store.load(bucket, version, marks, self._dying(chunks))

    def finish(self) -> None:
        self._live()
        self._store.finish()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _dying(self, chunks: Any) -> Any:
        for chunk in chunks:
            middle = chunk.ids.shape[0] // 2
            yield chunk.chosen(slice(0, middle))
            self._live()
            yield chunk.chosen(slice(middle, None))

    def _live(self) -> None:
        with self._lock:
            if self._left <= 0:
                raise Killed
            self._left -= 1


def test_a_restore_killed_anywhere_and_run_again_gives_exact_rows(
    stores: Stores, shelf: SnapshotStorage
) -> None:
    shape = stores.shape()
    history = History(stores.made(shape), shape)
    history.push_all(4)
    manifest = taken(history.store, shelf)
    history.push_all(2)
    every_death = range(4 * BUCKETS) if isinstance(history.store, MemoryStore) else range(0, 20, 6)
    for first_death in every_death:
        copy = stores.shape("copy", 2 * BUCKETS)
        target = stores.new(copy)
        deaths = 0
        for lives in itertools.chain([first_death], itertools.cycle([3, 4, 7])):
            try:
                put_back(Mortal(target, lives), shelf, manifest, copy)
            except Killed:
                deaths += 1
                with pytest.raises(MissingModel):
                    target.shape()
            else:
                break
        assert deaths or first_death >= 2 + 2 * BUCKETS  # begin, a load each, finish
        assert rows_in(target, copy) == history.truth_before(manifest), first_death
        history.supply(target, copy)
        assert rows_in(target, copy) == history.truth(), first_death


def test_a_stopped_restore_is_completed_by_the_next_one(
    memory: Stores, shelf: SnapshotStorage
) -> None:
    shape = memory.shape("many", 16)
    history = History(memory.made(shape), shape)
    history.push_all(2)
    manifest = taken(history.store, shelf)
    target, stop = memory.new(shape), threading.Event()
    first = restore(target, shelf, manifest, shape, stop=stop, tell=lambda _: stop.set())
    assert not first.complete
    assert 0 < len(first.buckets) < 16
    second = put_back(target, shelf, manifest, shape)
    assert second.complete
    assert sorted(first.buckets + second.buckets) == list(range(16))
    assert rows_in(target, shape) == history.truth()


def test_a_changed_byte_of_a_snapshot_is_found_before_a_restore_writes_anything(
    memory: Stores, tmp_path: Path
) -> None:
    shape = memory.shape()
    history = History(memory.made(shape), shape)
    history.push_all(3)
    shelf = SnapshotStorage(str(tmp_path))
    manifest = taken(history.store, shelf)
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    for each in manifest.files:
        path = tmp_path / manifest.name / each.file
        good = path.read_bytes()
        place = dice.randrange(len(good))
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        problems = verify(shelf, manifest, stop=threading.Event(), tell=lambda _: None)
        assert len(problems) == 1, f"seed {seed}"
        assert problems[0].startswith(f"{each.file}: expected sha256"), f"seed {seed}"
        target = memory.new(shape)
        with pytest.raises(DamagedSnapshot, match=each.file):
            put_back(target, shelf, manifest, shape)
        assert each.bucket in target.missing(), f"seed {seed}"
        path.write_bytes(good)
    assert verify(shelf, manifest, stop=threading.Event(), tell=lambda _: None) == []


def test_a_snapshot_fits_only_its_multiples_and_its_own_width(
    memory: Stores, shelf: SnapshotStorage
) -> None:
    shape = memory.shape()
    manifest = taken(memory.made(shape), shelf)
    with pytest.raises(DoesNotFit, match=f"at least the snapshot's {BUCKETS}.*got 2"):
        put_back(memory.new(shape), shelf, manifest, replace(shape, buckets=2))
    with pytest.raises(DoesNotFit, match="3 floats, got 2"):
        put_back(memory.new(shape), shelf, manifest, replace(shape, width=3))


def test_a_restore_into_another_shape_or_a_bucket_being_filled_is_refused(
    stores: Stores, shelf: SnapshotStorage
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    manifest = taken(store, shelf)
    with pytest.raises(ModelExists):
        put_back(store, shelf, manifest, replace(shape, buckets=2 * BUCKETS))
    store = stores.lose(store, shape, [1], with_shape=False)

    class Overtaken:
        def load(self, bucket: int, *arguments: Any) -> None:
            store.load(bucket, 0, {}, ())
            store.load(bucket, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    with pytest.raises(BucketExists):
        put_back(Overtaken(), shelf, manifest, shape)


def test_missing_buckets_can_be_filled_with_nothing_and_kafka_supplies_everything(
    stores: Stores,
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    history = History(store, shape)
    history.push_all(4)
    store = stores.lose(store, shape, [0, 3], with_shape=False)
    assert fill_with_nothing(store, None) == [0, 3]
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()
    store = stores.lose(store, shape, [1], with_shape=True)
    assert fill_with_nothing(store, shape) == [1]
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()
    assert fill_with_nothing(store, None) == []
