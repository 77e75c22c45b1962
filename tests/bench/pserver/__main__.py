"""Measures the parameter server, on two shards on this machine.

`python -m tests.bench.pserver [--quick] [--json] [--rows N ...]` starts a Valkey Cluster
of two primaries and measures, with rows of 18 floats unless stated otherwise:

    push_rows_per_second     packed pushes of 1,000 rows, a round of all buckets at a time
    append_ratio             the same against a Function that does nothing but XADD the same bytes
    push_mset_ratio          the same against plain MSET of the same bytes
    fold_rows_per_second     a keeper that finds full logs and writes every row of them
    mset_ratio               the same against plain MSET of the same bytes
    pull_rows_per_second     folded rows read back as arrays
    mget_ratio               the same against plain MGET of the same bytes
    replica_rows_per_second  a replica from nothing to complete
    bytes_per_row            of the server's memory, 34 floats, without the log
    lookup_us_N_rows         N single rows without a replica, a tenth of them just changed
    tail_bytes_per_row       memory per row in the logs, of a process that looks up rows

Without --quick it also measures 2 and 34 floats, and the time until a replica of 1 and 5 million
rows (or of --rows) is complete.

Ratios are medians over runs that take turns within one process, because machines differ and drift.
"""

from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.pserver.bench_cluster import cluster, flush
from tests.bench.pserver.lookups import measure_lookups
from tests.bench.pserver.rates import measure_push, measure_rows
from tests.bench.pserver.scale import measure_memory, measure_start


def measure_all(*, quick: bool, rows: list[int]) -> dict[str, float]:
    """Return all figures."""
    rounds = 6 if quick else 60
    with cluster() as nodes:
        found = measure_memory(nodes, max(5, rounds // 3))
        for width in (18,) if quick else (18, 2, 34):
            flush(nodes)
            rates = measure_push(nodes, width, 30 if quick else 100)
            flush(nodes)
            rates |= measure_rows(nodes, width, rounds)
            suffix = "" if width == 18 else f"_{width}_floats"
            found |= {name + suffix: value for name, value in rates.items()}
        flush(nodes)
        found |= measure_lookups(nodes, 200_000 if quick else 2_000_000, 3, 10 if quick else 100)
        for count in rows:
            found |= measure_start(nodes, count)
    return found


def main() -> None:
    """Measure and print."""
    parser = bench_parser("pserver", __doc__)
    parser.add_argument(
        *("--rows", "-r"),
        type=int,
        nargs="*",
        help="of the replicas to start; 10 million take 3 GB here and 2 GB in the store",
    )
    arguments = parser.parse_args()
    rows = arguments.rows
    if rows is None:
        rows = [] if arguments.quick else [1_000_000, 5_000_000]
    found = measure_all(quick=arguments.quick, rows=rows)
    print_figures(found, as_json=arguments.json)


if __name__ == "__main__":
    main()
