"""What the parameter server carries, through two shards on this machine.

`python -m tests.bench.pserver [--quick] [--json]` starts a Valkey Cluster of two primaries and
measures, with rows of 18 floats unless said otherwise:

    push_rows_per_second     packed pushes of 1,000 rows, a round of all buckets at a time
    append_ratio             the same against a Function that does nothing but XADD the same bytes
    fold_rows_per_second     a keeper that finds full logs and writes every row of them
    pull_rows_per_second     folded rows read back as arrays
    mget_ratio               the same against plain MGET of the same bytes
    replica_rows_per_second  a replica from nothing to complete
    bytes_per_row            of the server's memory, 34 floats, log aside

Ratios are of runs that take turns within one process, since machines differ and drift.
"""

from __future__ import annotations

import argparse
import json
import secrets
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from deploy.stack.valkey import ValkeyCluster
from pserver.gains import Gains, Header, pack
from pserver.keeper import Keeper, Keeping
from pserver.nodes import Call
from pserver.redis_store import open_store
from pserver.replica import Replica
from pserver.rows import row_bytes
from pserver.store import Push, Shape, Span

if TYPE_CHECKING:
    from collections.abc import Callable

    from pserver.redis_store import RedisStore

BUCKETS = 32
ROWS_A_PUSH = 1000
SOURCE = "bench/0"
_APPEND = b"""#!lua name=bench
redis.register_function('bench_append', function(keys, args)
  return redis.call('XADD', keys[1], '*', 'blob', args[1])
end)
"""


class Bench:
    """One model on the cluster, and what is measured with it."""

    def __init__(self, url: str, model: str, width: int) -> None:
        self.store: RedisStore = open_store(url, model)
        self.shape = Shape(model, BUCKETS, width, "bench", "")
        self.store.create(self.shape)
        self.dice = np.random.default_rng(7)
        self.offset = 0

    def blobs(self) -> list[bytes]:
        """One entry for each bucket, of rows nobody had before."""
        blobs = []
        for bucket in range(BUCKETS):
            ids = self.dice.integers(0, 1 << 59, ROWS_A_PUSH).astype(np.uint64)
            ids = np.sort(ids | (np.uint64(bucket) << np.uint64(59)))
            ones = np.ones(ROWS_A_PUSH, np.uint32)
            values = self.dice.standard_normal((ROWS_A_PUSH, self.shape.width), np.float32)
            header = Header(self.shape.width, ROWS_A_PUSH, 0, 0, [])
            blobs.append(pack(header, Gains(ids, ones, ones, ones, ones, values)))
        return blobs

    def push_all(self, blobs: list[bytes]) -> None:
        """One round: a push to every bucket."""
        span = Span(SOURCE, self.offset, self.offset + 1)
        self.offset += 1
        pushes = [Push(b, (span,), secrets.token_bytes(8), blob) for b, blob in enumerate(blobs)]
        for answer in self.store.push(pushes):
            if isinstance(answer, Exception):
                raise answer

    def append_all(self, blobs: list[bytes]) -> None:
        """The same bytes, with nothing checked and nothing remembered."""
        calls = []
        for bucket, blob in enumerate(blobs):
            key = f"{{{self.shape.model}:{bucket}}}:bare".encode()
            calls.append(Call(key, ("FCALL", "bench_append", 1, key, blob)))
        self.run(calls)

    def run(self, calls: list[Call]) -> list[object]:
        """Raw commands."""
        replies: list[object] = self.store.nodes.run(calls)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def forget(self, name: str) -> None:
        """Drop one key of every bucket."""
        keys = [f"{{{self.shape.model}:{bucket}}}:{name}".encode() for bucket in range(BUCKETS)]
        self.run([Call(key, ("DEL", key)) for key in keys])

    def keeper(self) -> Keeper:
        """One that folds and trims everything but each log's last entry, at once."""
        return Keeper(
            self.store,
            self.shape,
            name="bench",
            keeping=Keeping(keep_ms=0, keep_bytes=0),
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            draw_nonce=lambda: secrets.token_bytes(8),
        )

    def fold_everything(self) -> float:
        """Fold full logs; return seconds, of folding alone: the logs were followed before."""
        lazy = self.keeper()
        lazy._keeping = Keeping()
        while lazy.held != list(range(BUCKETS)) or not lazy.replica.complete or lazy.step():
            lazy.step()
        lazy._keeping = Keeping(keep_ms=0, keep_bytes=0)
        began = time.perf_counter()
        while any(len(tenure.entries) > 1 for tenure in lazy._tenures.values()):
            lazy.step()
        seconds = time.perf_counter() - began
        lazy.release()
        return seconds


def turns(first: Callable[[], None], second: Callable[[], None], count: int) -> tuple[float, float]:
    """Return the seconds each took in all, taking turns."""
    spent = [0.0, 0.0]
    for turn in range(2 * count):
        which = (turn ^ (turn >> 1)) & 1  # first, second, second, first
        began = time.perf_counter()
        (first, second)[which]()
        spent[which] += time.perf_counter() - began
    return spent[0], spent[1]


def measure_push(bench: Bench, rounds: int) -> dict[str, float]:
    """Push and bare appends, taking turns."""
    blobs = bench.blobs()
    for place in {bench.store.nodes._slots[0], bench.store.nodes._slots[-1]}:
        assert place is not None
        bench.store.nodes._one(place, "FUNCTION", "LOAD", "REPLACE", _APPEND)
    turns(lambda: bench.push_all(blobs), lambda: bench.append_all(blobs), 2)
    pushed, appended = turns(lambda: bench.push_all(blobs), lambda: bench.append_all(blobs), rounds)
    bench.forget("bare")
    rows = rounds * BUCKETS * ROWS_A_PUSH
    return {"push_rows_per_second": rows / pushed, "append_ratio": appended / pushed}


def measure_rows(bench: Bench, rounds: int) -> dict[str, float]:
    """Fold, pull beside MGET, and a replica's start, over the same rows."""
    for _ in range(rounds + 1):  # the last entry of a log is not folded
        bench.push_all(bench.blobs())
    rows = rounds * BUCKETS * ROWS_A_PUSH
    folding = bench.fold_everything()
    strings(bench, rounds)

    def pull() -> None:
        found = sum(
            chunk.versions.shape[0] for b in range(BUCKETS) for chunk in bench.store.rows(b)
        )
        assert found == rows, (found, rows)

    pulling, getting = turns(pull, lambda: strings(bench, rounds, read=True), 3)
    began = time.perf_counter()
    replica = Replica(bench.store, bench.shape)
    while not replica.complete:
        replica.poll()
    copying = time.perf_counter() - began
    return {
        "fold_rows_per_second": rows / folding,
        "pull_rows_per_second": 3 * rows / pulling,
        "mget_ratio": getting / pulling,
        "replica_rows_per_second": len(replica.table) / copying,
    }


def strings(bench: Bench, rounds: int, *, read: bool = False) -> None:
    """Write as many plain values of a row's bytes as there are rows, or read them all."""
    value = bytes(8 + row_bytes(bench.shape.width))
    for bucket in range(BUCKETS):
        tag = f"{{{bench.shape.model}:{bucket}}}:s"
        calls = []
        for turn in range(rounds):
            keys = [f"{tag}{turn * ROWS_A_PUSH + n}".encode() for n in range(ROWS_A_PUSH)]
            if read:
                calls.append(Call(keys[0], ("MGET", *keys)))
            else:
                pairs = (word for key in keys for word in (key, value))
                calls.append(Call(keys[0], ("MSET", *pairs)))
        bench.run(calls)


def used_bytes(cluster: ValkeyCluster) -> int:
    """Memory of all nodes."""
    found = 0
    for node in cluster.nodes:
        lines = node.call("INFO", "memory").splitlines()
        found += int(next(line for line in lines if line.startswith("used_memory:"))[12:])
    return found


def measure_memory(cluster: ValkeyCluster, rounds: int) -> dict[str, float]:
    """What a folded row takes, of all memory of the servers."""
    before = used_bytes(cluster)
    bench = Bench(cluster.url, "memory", 34)
    with closing(bench.store):
        for _ in range(rounds + 1):
            bench.push_all(bench.blobs())
        bench.fold_everything()
        bench.forget("log")
    # the connections are closed, so no buffers of theirs are in it
    return {"bytes_per_row": (used_bytes(cluster) - before) / (rounds * BUCKETS * ROWS_A_PUSH)}


def measure_width(url: str, width: int, rounds: int) -> dict[str, float]:
    """All rates at one width, named after it unless it is 18."""
    bench = Bench(url, f"push{width}", width)
    with closing(bench.store):
        found = measure_push(bench, rounds)
        bench.forget("log")
    bench = Bench(url, f"rows{width}", width)
    with closing(bench.store):
        found |= measure_rows(bench, rounds)
    suffix = "" if width == 18 else f"_{width}_floats"
    return {name + suffix: value for name, value in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pserver", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="within a minute")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    arguments = parser.parse_args()
    rounds = 20 if arguments.quick else 60
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        cluster = ValkeyCluster(Path(directory))
        try:
            cluster.launch()
            cluster.wait_ready()
            found = measure_memory(cluster, rounds // 2)
            for width in (18,) if arguments.quick else (18, 2, 34):
                for node in cluster.nodes:
                    node.call("FLUSHALL", "SYNC")
                found |= measure_width(cluster.url, width, rounds)
        finally:
            cluster.stop()
    if arguments.json:
        print(json.dumps(found))
        return
    table = Table("what", "figure")
    for name, value in found.items():
        table.add_row(name, f"{value:,.2f}" if value < 10 else f"{value:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
