"""Measures the time to write a snapshot, and to restore the model from it.

`python -m tests.bench.snapshot [--rows N] [--quick] [--json]` starts a Valkey Cluster of two
primaries, fills a model with N rows of 18 floats (default: a million), and measures

    snapshot   from folded rows to files in a folder
    verify     every byte and row of them
    restore    into an empty model of another name, without verifying first
    replica    from nothing to complete, for comparison: the cost of any reader of all rows

in seconds and rows per second, and the bytes of a row in the files. --quick: 200,000 rows.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from headrace.pserver.redis_backend.redis_store import RedisStore, open_store
from headrace.pserver.replica.replica import Replica
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.snapshots.manifest import Manifest
from headrace.pserver.snapshots.restoration import restore
from headrace.pserver.snapshots.storage import SnapshotStorage
from headrace.pserver.snapshots.verification import verify
from headrace.pserver.snapshots.writer import SnapshotFacts, SnapshotSettings, write_snapshot
from headrace.pserver.store import Shape
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.pserver.bench_cluster import cluster, seconds_of

BUCKETS = 64
WIDTH = 18
ROWS, QUICK_ROWS = 1_000_000, 200_000


def rows_of(bucket: int, count: int, dice: np.random.Generator) -> FoldedRows:
    """FoldedRows as a model has them: Zipf counts, small weights, sums of squares beside them."""
    ids = np.unique(dice.integers(0, 1 << 58, count).astype(np.uint64))
    count = ids.shape[0]
    shows = dice.zipf(1.5, count).clip(1, 1_000_000).astype(np.uint64)
    first = dice.integers(1_700_000_000, 1_700_600_000, count).astype(np.uint32)
    values = dice.standard_normal((count, WIDTH), np.float32) * np.float32(0.05)
    values[:, WIDTH // 2 :] **= 2
    return FoldedRows(
        ids | (np.uint64(bucket) << np.uint64(58)), shows, shows // 10, first, first + 1000, values
    )


def fill(store: RedisStore, shape: Shape, rows: int) -> int:
    """Make a model of folded rows; return how many there are."""
    dice = np.random.default_rng(7)
    store.begin(shape)
    made = 0
    for bucket in range(BUCKETS):
        chunk = rows_of(bucket, rows // BUCKETS, dice)
        store.load(bucket, 1, {"bench/0": 1}, _pieces(chunk))
        made += chunk.ids.shape[0]
    store.finish()
    return made


def _pieces(chunk: FoldedRows) -> Iterator[FoldedRows]:
    for start in range(0, chunk.ids.shape[0], 16_384):
        yield chunk.chosen(slice(start, start + 16_384))


def measure(rows: int, parallel: int) -> dict[str, float]:
    """Return the figures."""
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        cluster() as nodes,
        closing(open_store(nodes.url, "bench")) as store,
        closing(open_store(nodes.url, "again")) as again,
    ):
        shape = Shape("bench", BUCKETS, WIDTH, "bench", "")
        made = fill(store, shape, rows)
        storage = SnapshotStorage(folder)
        taken: list[Manifest | None] = []

        def take() -> None:
            taken.append(
                write_snapshot(
                    store,
                    storage,
                    SnapshotFacts("bench", store.sub_hashes),
                    now_ms=lambda: time.time_ns() // 1_000_000,
                    token="0000",
                    stop=stop,
                    tell=lambda _: None,
                    writing=SnapshotSettings(parallel=parallel),
                )
            )

        def follow() -> None:
            replica = Replica(store, shape)
            while not replica.complete:
                replica.poll()

        Replica(store, shape, buckets=[0]).poll()  # compiles
        seconds = {"replica": seconds_of(follow), "snapshot": seconds_of(take)}
        [manifest] = taken
        assert manifest is not None
        problems: list[str] = []
        seconds["verify"] = seconds_of(
            lambda: problems.extend(verify(storage, manifest, stop=stop, tell=lambda _: None))
        )
        assert problems == []
        other = Shape("again", BUCKETS, WIDTH, "bench", "")
        seconds["restore"] = seconds_of(
            lambda: restore(again, storage, manifest, other, stop=stop, tell=lambda _: None)
        )
        size_bytes = manifest.size_bytes
    figures: dict[str, float] = {"rows": made, "file_bytes_per_row": size_bytes / made}
    for each, took in seconds.items():
        figures[f"{each}_seconds"] = took
        figures[f"{each}_rows_per_second"] = made / took
    return figures


def main() -> None:
    """Measure and print."""
    parser = bench_parser("snapshot", __doc__)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--parallel", type=int, default=2, help="buckets at a time")
    options = parser.parse_args()
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    print_figures(measure(rows, options.parallel), as_json=options.json)


if __name__ == "__main__":
    main()
