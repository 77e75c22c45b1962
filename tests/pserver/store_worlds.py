"""The worlds in which the laws of stores run: memory, one server, a cluster."""

from __future__ import annotations

import itertools
import random
from typing import Any

from headrace.pserver.memory_store import BucketState, MemoryStore
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, StoreSettings, open_store
from headrace.pserver.store import Shape
from tests.pserver.entries import WIDTH
from tests.pserver.store_laws import BUCKETS


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
