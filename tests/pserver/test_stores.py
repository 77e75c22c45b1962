"""The laws of a store, on the store in memory, on one server, and on a cluster."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.pserver.errors import BucketExists
from headrace.pserver.memory_store import BucketState, MemoryStore
from headrace.pserver.redis_backend.commands import RedisCommands
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push, Shape
from tests.pserver.entries import WIDTH
from tests.pserver.store_laws import BUCKETS, StoreLaws, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class MemoryWorld:
    def __init__(self) -> None:
        ticks = itertools.count()  # each read of the clock takes a millisecond
        dice = random.Random(0)
        self.store = MemoryStore(clock_ms=lambda: next(ticks), nonces=lambda: dice.randbytes(8))
        self.shape = Shape("laws", BUCKETS, WIDTH, "fingerprint", "the spec")
        self.store.create(self.shape)

    def checkpoint(self, bucket: int) -> BucketState:
        return self.store.checkpoint(bucket)

    def revert(self, bucket: int, checkpoint: BucketState) -> None:
        self.store.revert(bucket, checkpoint)

    def empty(self, bucket: int) -> None:
        self.store.empty(bucket)


class RedisWorld:
    def __init__(self, url: str, model: str) -> None:
        self.store: RedisStore = open_store(url, model, StoreSettings(sub_hashes=8))
        self.shape = Shape(model, BUCKETS, WIDTH, "fingerprint", "the spec")
        self.store.create(self.shape)

    def keys(self, bucket: int) -> list[bytes]:
        names = ("log", "marks", *(f"rows:{n}" for n in range(8)))
        return [f"{{{self.shape.model}:{bucket}}}:{name}".encode() for name in names]

    def run(self, *calls: Call) -> list[Any]:
        replies = self.store.nodes.run(calls)
        assert not any(isinstance(reply, Exception) for reply in replies), replies
        return replies

    def checkpoint(self, bucket: int) -> list[bytes | None]:
        return self.run(*(Call(key, ("DUMP", key)) for key in self.keys(bucket)))

    def revert(self, bucket: int, checkpoint: list[bytes | None]) -> None:
        self.empty(bucket)
        for key, dumped in zip(self.keys(bucket), checkpoint, strict=True):
            if dumped is not None:
                self.run(Call(key, ("RESTORE", key, 0, dumped)))

    def empty(self, bucket: int) -> None:
        self.run(*(Call(key, ("DEL", key)) for key in self.keys(bucket)))


class TestMemoryStore(StoreLaws):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


class RedisLaws(StoreLaws):
    """The laws, and those of late calls, which the store in memory cannot have."""

    def test_a_late_copy_of_the_call_that_ends_a_load_is_refused(self, world: RedisWorld) -> None:
        world.empty(1)
        calls = RedisCommands(world.store.nodes, world.shape.model)
        names = ["log", "marks", "rows:0"]
        end = calls.function("load_end", 1, ["marks"], ["token", 4, b"a nonce", "t/0", 7])
        calls.all([calls.function("load_begin", 1, names, ["token"]), end])
        [answer] = world.store.push([Push(1, (OffsetSpan("t/0", 7, 8),), b"another", b"")])
        assert isinstance(answer, BucketAnswer)
        with pytest.raises(BucketExists):
            calls.all([end])
        assert world.store.marks([1]) == [answer]


class TestOneServer(RedisLaws):
    @pytest.fixture
    def world(self, valkey_node: str, fresh_name: Callable[[str], str]) -> Iterator[World]:
        world = RedisWorld(valkey_node, fresh_name("laws"))
        yield world
        world.store.close()


class TestCluster(RedisLaws):
    @pytest.fixture
    def world(self, valkey: str, fresh_name: Callable[[str], str]) -> Iterator[World]:
        world = RedisWorld(valkey, fresh_name("laws"))
        yield world
        world.store.close()


@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("sub_hashes", [1, 256, 4096])
def test_a_lost_shape_is_created_again_with_the_sub_hashes_of_its_buckets(
    valkey_node: str, fresh_name: Callable[[str], str], sub_hashes: int, rows: int
) -> None:
    shape = Shape(fresh_name("survivors"), 4, WIDTH, "fingerprint", "spec")
    settings = StoreSettings(sub_hashes=sub_hashes)
    ids = np.random.default_rng(3).integers(1 << 62, 1 << 63, rows, np.uint64)  # bucket 1
    ones = np.ones(rows, np.uint64)
    seen = np.ones(rows, np.uint32)
    written = FoldedRows(ids, ones, ones, seen, seen, np.ones((rows, WIDTH), np.float32))
    with closing(open_store(valkey_node, shape.model, settings)) as store:
        store.begin(shape)
        for bucket in range(4):
            store.load(bucket, 1, {}, [written] if bucket == 1 else [])
        store.finish()
        store.nodes.run([Call(key, ("DEL", key)) for key in (_shape_key(shape), *_some(shape))])
    with closing(open_store(valkey_node, shape.model)) as store:
        store.begin(shape)
        assert store.missing() == [3]
        store.load(3, 1, {}, [])
        store.finish()
        assert store.sub_hashes == sub_hashes
        [found] = store.find({1: ids})
        assert not isinstance(found, Exception)
        assert found.rows.ids.shape[0] == rows
        store.drop()


def _shape_key(shape: Shape) -> bytes:
    return f"{{{shape.model}}}:shape".encode()


def _some(shape: Shape) -> list[bytes]:
    return [f"{{{shape.model}:3}}:{name}".encode() for name in ("marks", "log")]


@pytest.mark.parametrize(("chosen", "expected"), [(None, 2048), (8, 8)])
def test_a_model_keeps_its_number_of_sub_hashes_for_every_process(
    valkey_node: str, fresh_name: Callable[[str], str], chosen: int | None, expected: int
) -> None:
    shape = Shape(fresh_name("sub-hashes"), 8, WIDTH, "fingerprint", "spec")
    with closing(open_store(valkey_node, shape.model, StoreSettings(sub_hashes=chosen))) as store:
        store.create(shape)
    for wanted in (None, 64):
        settings = StoreSettings(sub_hashes=wanted)
        with closing(open_store(valkey_node, shape.model, settings)) as store:
            store.create(shape)
            assert store.sub_hashes == expected
    with closing(open_store(valkey_node, shape.model)) as store:
        store.drop()
