"""Stores that lose buckets, and restores into them."""

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.restoration import RestoreResult, restore
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import WIDTH
from tests.pserver.snapshots.snapshot_world import BUCKETS, History


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

    def history(self, rounds: int, shape: Shape | None = None, seed: int = 0) -> History:
        """A new model, after so many pushes to every bucket."""
        shape = shape or self.shape()
        history = History(self.made(shape), shape, seed)
        history.push_all(rounds)
        return history

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


def put_back(
    store: Any, storage: SnapshotStorage, manifest: Manifest, shape: Shape, **options: Any
) -> RestoreResult:
    return restore(
        store, storage, manifest, shape, stop=threading.Event(), tell=lambda _: None, **options
    )
