"""Measures a model of many rows: memory in the store, and time until a replica is complete.

Wall time is reported beside the replica's own processor time, which other work on the machine
lengthens less.
"""

import time

from headrace.pserver.replica.replica import Replica
from tests.bench.pserver.bench_cluster import Bench, flush, used_bytes
from tests.valkey_cluster import ValkeyCluster


def measure_memory(nodes: ValkeyCluster, rounds: int) -> dict[str, float]:
    """Measure the memory of the servers per folded row of 34 floats."""
    flush(nodes)
    before = used_bytes(nodes)
    bench = Bench(nodes.url, "memory", 34)
    bench.store.create(bench.shape)
    for _ in range(rounds + 1):
        bench.push_all(bench.blobs())
    bench.fold_everything()
    bench.forget("log")
    rows = rounds * bench.shape.buckets * 1000
    bench.store.close()
    # the connections are closed, so no buffers of theirs are in it
    return {"bytes_per_row": (used_bytes(nodes) - before) / rows}


def measure_start(nodes: ValkeyCluster, rows: int, width: int = 18) -> dict[str, float]:
    """Fill a model of 64 buckets with folded rows; copy it."""
    flush(nodes)
    before = used_bytes(nodes)
    bench = Bench(nodes.url, "start", width, buckets=64)
    began = time.perf_counter()
    bench.load(rows)
    loading = time.perf_counter() - began
    began, used = time.perf_counter(), time.process_time()
    replica = Replica(bench.store, bench.shape)
    while not replica.complete:
        replica.poll()
    copying, used = time.perf_counter() - began, time.process_time() - used
    found = len(replica.table)
    assert found == rows // 64 * 64, (found, rows)
    bench.store.close()
    name = f"{rows // 1_000_000}_million_rows"
    return {
        f"load_rows_per_second_{name}": found / loading,
        f"replica_s_{name}": copying,
        f"replica_own_cpu_s_{name}": used,
        f"replica_rows_per_second_{name}": found / copying,
        f"bytes_per_row_{name}": (used_bytes(nodes) - before) / found,
    }
