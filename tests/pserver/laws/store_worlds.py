"""The worlds in which the laws of stores run: memory, embedded functions, servers."""

import itertools
import random
import time
from collections.abc import Mapping
from typing import Any

from headrace.pserver.memory_store import BucketState, MemoryStore
from headrace.pserver.redis_backend.bucket_successor import BucketSuccessor
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.store import Shape
from tests.embedded_valkey.keyspace import Value
from tests.embedded_valkey.server import EmbeddedValkey
from tests.pserver.laws.store_laws import BUCKETS
from tests.pserver.memory_successor import MemorySuccessor, remove_old
from tests.pserver.rows.entries import WIDTH


class MemoryWorld:
    def __init__(self) -> None:
        ticks = itertools.count()  # each read of the clock takes a millisecond
        dice = random.Random(0)
        self.store = MemoryStore(clock_ms=lambda: next(ticks), nonces=lambda: dice.randbytes(8))
        self.shape = Shape("laws", BUCKETS, WIDTH, "fingerprint", "the spec")
        self.store.create(self.shape)
        self._reshards = 0

    def checkpoint(self, bucket: int) -> BucketState:
        return self.store.checkpoint(bucket)

    def revert(self, bucket: int, checkpoint: BucketState) -> None:
        self.store.revert(bucket, checkpoint)

    def empty(self, bucket: int) -> None:
        self.store.empty(bucket)

    def opened(self) -> MemoryStore:
        return self.store

    def successor(self, buckets: int) -> MemorySuccessor:
        self._reshards += 1
        return MemorySuccessor(self.store, buckets, str(self._reshards))

    def end_reshard_token(self) -> None:
        self.store.reshard_token = None

    def remove_old(self) -> int:
        return remove_old(self.store)


class _Resharded:
    """The reshards of worlds with a RedisStore."""

    store: RedisStore

    def opened(self) -> RedisStore:
        return RedisStore(self.store.nodes, self.store._calls.model, 8)

    def successor(self, buckets: int) -> BucketSuccessor:
        return self.store.successor(buckets)

    def end_reshard_token(self) -> None:
        key = self.store._calls.model_key("reshard")
        self.store._calls.one(key, "DEL", key)

    def remove_old(self) -> int:
        return self.store.remove_old()


class EmbeddedWorld(_Resharded):
    """The store on real servers, and the real functions, without a server."""

    def __init__(self, library: str | None = None) -> None:
        dice = random.Random(0)
        self.server = EmbeddedValkey(lambda: time.monotonic_ns() // 1_000_000, library)
        self.store = RedisStore(self.server, "laws", 8, lambda: dice.randbytes(8))  # type: ignore[arg-type]
        self.shape = Shape("laws", BUCKETS, WIDTH, "fingerprint", "the spec")
        self.store.create(self.shape)

    def keys(self, bucket: int) -> list[bytes]:
        names = ("log", "marks", *(f"rows:{n}" for n in range(8)))
        return [self.store.key(bucket, name) for name in names]

    def checkpoint(self, bucket: int) -> Mapping[bytes, Value]:
        return self.server.copy_of(self.keys(bucket))

    def revert(self, bucket: int, checkpoint: Mapping[bytes, Value]) -> None:
        self.server.put_back(self.keys(bucket), checkpoint)

    def empty(self, bucket: int) -> None:
        self.server.put_back(self.keys(bucket), {})


class RedisWorld(_Resharded):
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
