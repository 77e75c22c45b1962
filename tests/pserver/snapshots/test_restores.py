"""Restores of snapshots: killed and repeated, refused, and of damaged or missing buckets."""

import itertools
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.pserver.errors import BucketExists, MissingModel, ModelExists
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.snapshots.restoration import fill_with_nothing, restore
from headrace.pserver.snapshots.snapshot_errors import DamagedSnapshot, DoesNotFit
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import verify
from headrace.pserver.store import Shape
from tests.pserver.snapshots.broken_stores import Stores, put_back
from tests.pserver.snapshots.snapshot_world import BUCKETS, History, Killed, rows_in, taken


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
    stores: Stores, storage: SnapshotStorage
) -> None:
    history = stores.history(4)
    manifest = taken(history.store, storage)
    history.push_all(2)
    every_death = range(4 * BUCKETS) if isinstance(history.store, MemoryStore) else range(0, 20, 6)
    for first_death in every_death:
        copy = stores.shape("copy", 2 * BUCKETS)
        target = stores.new(copy)
        deaths = 0
        for lives in itertools.chain([first_death], itertools.cycle([3, 4, 7])):
            try:
                put_back(Mortal(target, lives), storage, manifest, copy)
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
    memory: Stores, storage: SnapshotStorage
) -> None:
    shape = memory.shape("many", 16)
    history = History(memory.made(shape), shape)
    history.push_all(2)
    manifest = taken(history.store, storage)
    target, stop = memory.new(shape), threading.Event()
    first = restore(target, storage, manifest, shape, stop=stop, tell=lambda _: stop.set())
    assert not first.complete
    assert 0 < len(first.buckets) < 16
    second = put_back(target, storage, manifest, shape)
    assert second.complete
    assert sorted(first.buckets + second.buckets) == list(range(16))
    assert rows_in(target, shape) == history.truth()


def test_a_changed_byte_of_a_snapshot_is_found_before_a_restore_writes_anything(
    memory: Stores, tmp_path: Path
) -> None:
    history = memory.history(3)
    shape = history.shape
    storage = SnapshotStorage(str(tmp_path))
    manifest = taken(history.store, storage)
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    for each in manifest.files:
        path = tmp_path / manifest.name / each.file
        good = path.read_bytes()
        place = dice.randrange(len(good))
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        problems = verify(storage, manifest, stop=threading.Event(), tell=lambda _: None)
        assert len(problems) == 1, f"seed {seed}"
        assert problems[0].startswith(f"{each.file}: expected sha256"), f"seed {seed}"
        target = memory.new(shape)
        with pytest.raises(DamagedSnapshot, match=each.file):
            put_back(target, storage, manifest, shape)
        assert each.bucket in target.missing(), f"seed {seed}"
        path.write_bytes(good)
    assert verify(storage, manifest, stop=threading.Event(), tell=lambda _: None) == []


def test_a_snapshot_fits_only_its_multiples_and_its_own_width(
    memory: Stores, storage: SnapshotStorage
) -> None:
    shape = memory.shape()
    manifest = taken(memory.made(shape), storage)
    with pytest.raises(DoesNotFit, match=f"at least the snapshot's {BUCKETS}.*got 2"):
        put_back(memory.new(shape), storage, manifest, replace(shape, buckets=2))
    with pytest.raises(DoesNotFit, match="3 floats, got 2"):
        put_back(memory.new(shape), storage, manifest, replace(shape, width=3))


def test_a_restore_into_another_shape_or_a_bucket_being_filled_is_refused(
    stores: Stores, storage: SnapshotStorage
) -> None:
    shape = stores.shape()
    store = stores.made(shape)
    manifest = taken(store, storage)
    with pytest.raises(ModelExists):
        put_back(store, storage, manifest, replace(shape, buckets=2 * BUCKETS))
    store = stores.lose(store, shape, [1], with_shape=False)

    class Overtaken:
        def load(self, bucket: int, *arguments: Any) -> None:
            store.load(bucket, 0, {}, ())
            store.load(bucket, *arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    with pytest.raises(BucketExists):
        put_back(Overtaken(), storage, manifest, shape)


def test_missing_buckets_can_be_filled_with_nothing_and_kafka_supplies_everything(
    stores: Stores,
) -> None:
    history = stores.history(4)
    store, shape = history.store, history.shape
    store = stores.lose(store, shape, [0, 3], with_shape=False)
    assert fill_with_nothing(store, None) == [0, 3]
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()
    store = stores.lose(store, shape, [1], with_shape=True)
    assert fill_with_nothing(store, shape) == [1]
    history.supply(store, shape)
    assert rows_in(store, shape) == history.truth()
    assert fill_with_nothing(store, None) == []
