"""Measures lookups of single rows by a process that holds only the tails of the logs."""

import statistics
import time

import numpy as np

from headrace.pserver.replica.partial_replica import PartialReplica
from tests.bench.pserver.bench_cluster import ROWS_A_PUSH, Bench
from tests.valkey_cluster import ValkeyCluster


def measure_lookups(nodes: ValkeyCluster, rows: int, rounds: int, repeats: int) -> dict[str, float]:
    """Look up 40, 1,000 and 10,000 rows, a tenth of them in the tail of `rounds` entries a bucket.

    With 18 floats. The tail was followed before, as it is in a process that polls all the time.
    """
    bench = Bench(nodes.url, "lookups", 18, buckets=64)
    ids = bench.load(rows)
    lookup = PartialReplica(bench.store, bench.shape)
    recent = []
    for _ in range(rounds):
        some = [np.sort(bench.dice.choice(each, ROWS_A_PUSH, replace=False)) for each in ids]
        recent += some
        bench.push_all([bench.blob_of(each) for each in some])
        lookup.poll()
    every, fresh = np.concatenate(ids), np.unique(np.concatenate(recent))
    began = time.perf_counter()
    for _ in range(repeats):
        lookup.poll()
    found = {"idle_poll_us": (time.perf_counter() - began) / repeats * 1e6}
    for count in (40, 1_000, 10_000):
        spent = []
        for _ in range(repeats):
            wanted = bench.dice.choice(every, count)
            wanted[: count // 10] = bench.dice.choice(fresh, count // 10)
            began = time.perf_counter()
            answer = lookup.rows(wanted)
            spent.append(time.perf_counter() - began)
            assert answer.present.all()
        found[f"lookup_us_{count}_rows"] = statistics.median(spent) * 1e6
    found["tail_rows"] = lookup.tail_rows
    found["tail_bytes_per_row"] = lookup.tail_bytes / lookup.tail_rows
    bench.store.close()
    return found
