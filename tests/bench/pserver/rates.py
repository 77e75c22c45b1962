"""Measures rows pushed, folded and pulled, beside plain commands that move the same bytes."""

import statistics
import time

from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import row_bytes
from tests.bench.pserver.bench_cluster import ROWS_A_PUSH, Bench, ratio, turns
from tests.valkey_cluster import ValkeyCluster


def measure_push(nodes: ValkeyCluster, width: int, count: int) -> dict[str, float]:
    """Pushes, bare appends and MSET of the same bytes, taking turns."""
    bench = Bench(nodes.url, f"push{width}", width)
    bench.store.create(bench.shape)
    bench.allow_appends(nodes)
    blobs = bench.blobs()
    strings = Strings(bench, 1)
    tasks = (lambda: bench.push_all(blobs), lambda: bench.append_all(blobs))
    turns(2, *tasks)
    pushed, appended = turns(count, *tasks)
    [written] = turns(2, strings.write)
    bench.store.drop()
    bench.forget("bare")
    bench.store.close()
    rows = bench.shape.buckets * ROWS_A_PUSH
    return {
        "push_rows_per_second": rows / statistics.median(pushed),
        "append_ratio": ratio(pushed, appended),
        "push_mset_ratio": statistics.median(written) / statistics.median(pushed),
    }


def measure_rows(nodes: ValkeyCluster, width: int, rounds: int) -> dict[str, float]:
    """Fold beside MSET, pull beside MGET, and a replica's start, over the same rows."""
    bench = Bench(nodes.url, f"rows{width}", width)
    bench.store.create(bench.shape)
    for _ in range(rounds + 1):  # the last entry of a log is not folded
        bench.push_all(bench.blobs())
    rows = rounds * bench.shape.buckets * ROWS_A_PUSH
    began, ended = bench.fold_everything()
    folding = ended - began
    strings = Strings(bench, rounds)
    began = time.perf_counter()
    strings.write()
    writing = time.perf_counter() - began

    def pull() -> None:
        chunks = (chunk for bucket in bench.buckets for chunk in bench.store.rows(bucket))
        found = sum(chunk.versions.shape[0] for chunk in chunks)
        assert found == rows, (found, rows)

    def copy() -> None:
        replica = Replica(bench.store, bench.shape)
        while not replica.complete:
            replica.poll()

    pulling, getting, copying = turns(2, pull, strings.read, copy)
    bench.store.close()
    return {
        "fold_rows_per_second": rows / folding,
        "mset_ratio": writing / folding,
        "pull_rows_per_second": rows / statistics.median(pulling),
        "mget_ratio": ratio(pulling, getting),
        "replica_rows_per_second": rows / statistics.median(copying),
    }


class Strings:
    """As many plain values as there are rows, each of a row's bytes."""

    def __init__(self, bench: Bench, rounds: int) -> None:
        self._bench = bench
        self._value = bytes(row_bytes(bench.shape.width))
        self._keys = [
            [
                [b"%s%d" % (bench.store.key(b, "s"), turn * ROWS_A_PUSH + n) for n in range(1000)]
                for turn in range(rounds)
            ]
            for b in bench.buckets
        ]

    def write(self) -> None:
        """MSET of a thousand at a time, a round of all buckets at a time, as pushes go."""
        for turn in zip(*self._keys, strict=True):
            pairs = [[word for key in keys for word in (key, self._value)] for keys in turn]
            self._bench.run([Call(words[0], ("MSET", *words)) for words in pairs])

    def read(self) -> None:
        """MGET of a thousand at a time, a bucket at a time, as rows are read."""
        for bucket in self._keys:
            self._bench.run([Call(keys[0], ("MGET", *keys)) for keys in bucket])
