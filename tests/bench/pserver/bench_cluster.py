"""The servers of the benchmarks: a Valkey Cluster of two primaries, with models on it.

Ids are random, since ids are hashes. The rows of one entry are therefore spread over all sub-hashes
of their bucket, as in a real log.
"""

import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, pack
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import OffsetSpan, Push, Shape
from tests.running_server import running_server
from tests.valkey_cluster import ValkeyCluster

ROWS_A_PUSH = 1000
SOURCE = "bench/0"
_APPEND = b"""#!lua name=bench
redis.register_function('bench_append', function(keys, args)
  return redis.call('XADD', keys[1], '*', 'blob', args[1])
end)
"""


@contextmanager
def cluster() -> Iterator[ValkeyCluster]:
    """Two primaries, gone when the block ends."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory,
        running_server(ValkeyCluster(Path(directory))) as nodes,
    ):
        yield nodes


def flush(nodes: ValkeyCluster) -> None:
    """Remove everything."""
    for node in nodes.nodes:
        node.call("FLUSHALL", "SYNC")


def used_bytes(nodes: ValkeyCluster) -> int:
    """Memory of all nodes."""
    found = 0
    for node in nodes.nodes:
        lines = node.call("INFO", "memory").splitlines()
        found += int(next(line for line in lines if line.startswith("used_memory:"))[12:])
    return found


class Bench:
    """One model on the cluster, and what is done with it."""

    def __init__(self, url: str, model: str, width: int, *, buckets: int = 32) -> None:
        self.store: RedisStore = open_store(url, model)
        self.shape = Shape(model, buckets, width, "bench", "")
        self.dice = np.random.default_rng(7)
        self.offset = 0

    @property
    def buckets(self) -> range:
        """All of them."""
        return range(self.shape.buckets)

    def ids_of(self, bucket: int, count: int) -> npt.NDArray[np.uint64]:
        """Return new ids of one bucket, ascending."""
        below = 64 - (self.shape.buckets.bit_length() - 1)
        ids = self.dice.integers(0, 1 << below, count, np.uint64)
        return np.sort(ids | np.uint64(bucket << below))

    def blob_of(self, ids: npt.NDArray[np.uint64]) -> bytes:
        """An entry in which these rows gain something."""
        ones = np.ones(ids.shape[0], np.uint32)
        values = self.dice.standard_normal((ids.shape[0], self.shape.width), np.float32)
        header = EntryHeader(self.shape.width, ids.shape[0], 0, 0, [])
        return pack(header, RowDeltas(ids, ones, ones, ones, ones, values))

    def blobs(self) -> list[bytes]:
        """Return one entry for each bucket, of new rows."""
        return [self.blob_of(self.ids_of(bucket, ROWS_A_PUSH)) for bucket in self.buckets]

    def push_all(self, blobs: list[bytes]) -> None:
        """One round: a push to every bucket."""
        span = OffsetSpan(SOURCE, self.offset, self.offset + 1)
        self.offset += 1
        pushes = [Push(b, (span,), secrets.token_bytes(8), blob) for b, blob in enumerate(blobs)]
        for answer in self.store.push(pushes):
            if isinstance(answer, Exception):
                raise answer

    def append_all(self, blobs: list[bytes]) -> None:
        """The same bytes, with nothing checked and nothing remembered."""
        keys = [self.store.key(bucket, "bare") for bucket in self.buckets]
        self.run(
            [
                Call(key, ("FCALL", "bench_append", 1, key, blob))
                for key, blob in zip(keys, blobs, strict=True)
            ]
        )

    def allow_appends(self, nodes: ValkeyCluster) -> None:
        """Load the function of `append_all`."""
        for node in nodes.nodes:
            node.call("FUNCTION", "LOAD", "REPLACE", _APPEND.decode())

    def run(self, calls: list[Call]) -> list[object]:
        """Raw commands."""
        replies: list[object] = self.store.nodes.run(calls)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def forget(self, name: str) -> None:
        """Drop one key of every bucket."""
        keys = [self.store.key(bucket, name) for bucket in self.buckets]
        self.run([Call(key, ("UNLINK", key)) for key in keys])

    def load(self, rows: int) -> list[npt.NDArray[np.uint64]]:
        """Make the model of so many rows, all folded; return the ids of each bucket."""
        self.store.begin(self.shape)
        ids = [self.ids_of(bucket, rows // self.shape.buckets) for bucket in self.buckets]
        for bucket, some in enumerate(ids):
            ones = np.ones(some.shape[0], np.uint64)
            seen = np.ones(some.shape[0], np.uint32)
            values = self.dice.standard_normal((some.shape[0], self.shape.width), np.float32)
            self.store.load(bucket, 1, {}, [FoldedRows(some, ones, ones, seen, seen, values)])
        self.store.finish()
        return ids

    def keeper(self, keeping: FoldPolicy) -> Keeper:
        """Return a keeper without rivals."""
        return Keeper(
            self.store,
            self.shape,
            name="bench",
            keeping=keeping,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            draw_nonce=lambda: secrets.token_bytes(8),
        )

    def fold_everything(self) -> tuple[float, float]:
        """Fold full logs; return the time before and after, both when the logs were followed."""
        lazy = self.keeper(FoldPolicy(keep_bytes=1 << 40))
        while lazy.leased != list(self.buckets) or not lazy.replica.complete or lazy.step():
            lazy.step()
        lazy._keeping = FoldPolicy(keep_ms=0, keep_bytes=0)
        began = time.perf_counter()
        while any(len(lease.entries) > 1 for lease in lazy._leases.values()):
            lazy.step()
        ended = time.perf_counter()
        lazy.release()
        return began, ended


def seconds_of(thing: Callable[[], object]) -> float:
    """Do a thing; return the seconds that it took."""
    began = time.perf_counter()
    thing()
    return time.perf_counter() - began


def turns(count: int, *things: Callable[[], object]) -> list[list[float]]:
    """Do each thing `count` times, in turns; return the seconds that each took each time."""
    spent: list[list[float]] = [[] for _ in things]
    order = list(range(len(things)))
    for _ in range(count):
        for which in order:
            spent[which].append(seconds_of(things[which]))
        order.reverse()  # who is first has the caches of the other
    return spent


def ratio(mine: list[float], others: list[float]) -> float:
    """Return the factor by which the first is faster: the median over the turns."""
    return statistics.median(other / one for one, other in zip(mine, others, strict=True))
