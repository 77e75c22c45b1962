"""Measures the memory of a row and the cost of writing it again, by the rows in one sub-hash.

Redis searches a listpack (a small hash as one flat piece of memory) from its beginning. More rows
in a listpack save memory and make writes slower. A hash that outgrew the listpack takes some 70
bytes more per row. The figure is the servers' own processor time, because it does not depend on
other work on the machine.
"""

from collections.abc import Iterator

import numpy as np

from headrace.deploy.local.services.valkey import ValkeyCluster
from tests.bench.pserver.bench_cluster import Bench, flush, used_bytes

_BUCKETS = 8
_ROWS_WRITTEN = 24_000  # of each bucket, in one entry


def server_s(nodes: ValkeyCluster) -> float:
    """Processor time of all nodes' main threads."""
    found = 0.0
    for node in nodes.nodes:
        lines = node.call("INFO", "cpu").splitlines()
        mine = (line for line in lines if line.startswith("used_cpu_") and "_main_thread" in line)
        found += sum(float(line.split(":")[1]) for line in mine)
    return found


def measure_sub_hashes(
    nodes: ValkeyCluster, width: int, rows: int, sub_hashes: int, most_entries: int
) -> dict[str, float]:
    """Load a share of a model of `rows` rows and 64 buckets; then write some of its rows again."""
    flush(nodes)
    for node in nodes.nodes:
        node.call("CONFIG", "SET", "hash-max-listpack-entries", most_entries)
        node.call("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)  # a fork is another matter
    before = used_bytes(nodes)
    share = rows * _BUCKETS // 64
    bench = Bench(nodes.url, "folding", width, buckets=_BUCKETS, sub_hashes=sub_hashes)
    ids = bench.load(share)
    bench.store.close()
    kept = used_bytes(nodes) - before
    bench = Bench(nodes.url, "folding", width, buckets=_BUCKETS, sub_hashes=sub_hashes)
    written = min(_ROWS_WRITTEN, ids[0].shape[0])
    chosen = [np.sort(bench.dice.choice(some, written, replace=False)) for some in ids]
    found = {"bytes_per_row": kept / share}
    for rows_a_fold in (250, 1000, 4000):
        bench.push_all([bench.blob_of(some) for some in chosen])
        bench.push_all([bench.blob_of(some[:1]) for some in ids])  # the last is not folded
        before_s, after_s = bench.fold_everything(rows_a_fold, lambda: server_s(nodes))
        spent = after_s - before_s
        found[f"server_us_a_row_{rows_a_fold}"] = spent / (written * _BUCKETS) * 1e6
    bench.store.close()
    return found


def sweep(nodes: ValkeyCluster, width: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Every combination that was thought of."""
    for rows in (1_000_000, 5_000_000, 10_000_000):
        for sub_hashes in (256, 1024, 4096):
            entries = rows // 64 // sub_hashes
            for most_entries in (128, 512):
                if entries < 1 or (most_entries == 512 and not 100 < entries < 512):
                    continue  # the same as with 128
                name = f"{rows:,} rows, {sub_hashes} sub-hashes, listpacks up to {most_entries}"
                yield name, measure_sub_hashes(nodes, width, rows, sub_hashes, most_entries)
