"""Measures several workers on one machine: memory, and requests a second.

    python -m tests.bench.workers [--quick] [--json]

Real processes: a Valkey Cluster of two shards with the rows of a model, `headrace serving run` with
one worker and then with two, and a client with eight connections, which costs about as much as a
worker. Nothing is learned meanwhile, but the server follows the logs.

`pss_mb`: memory of all processes of the server; shared memory counts once. `uss_mb`: private memory
of each process. The first is the parent, and the follower is among the others.
`requests_per_second`: one candidate. `candidates_per_second`: 200 candidates.
"""

import asyncio
import os
from typing import Any

import psutil
import uvloop

from headrace.learner.spec.model_spec import load_spec
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.pserver.bench_cluster import cluster
from tests.bench.serving.__main__ import CANDIDATES, SPECS, served
from tests.bench.serving.asking import answers_per_second, ready, requests
from tests.bench.serving.learning import Pushing

SPEC = SPECS["lr"]


def memory_mb(first: psutil.Process) -> dict[str, Any]:
    """Return what a server's processes have in memory, all together and each for itself."""
    found = [each.memory_full_info() for each in [first, *first.children(recursive=True)]]
    return {
        "pss_mb": round(sum(each.pss for each in found) / 1e6),
        "uss_mb": [round(each.uss / 1e6) for each in found],
    }


async def measure(port: int, first: psutil.Process, seconds: float) -> dict[str, Any]:
    """Ask the server, then look at its memory."""
    spec = load_spec(SPEC)
    one, many = requests(spec, 1), requests(spec, CANDIDATES)
    await ready(port, many[0])
    await answers_per_second(port, many, 1.0)  # compiled and warm, in every worker
    return {
        "requests_per_second": round(await answers_per_second(port, one, seconds)),
        "candidates_per_second": round(CANDIDATES * await answers_per_second(port, many, seconds)),
        **memory_mb(first),
    }


def main() -> None:
    """Measure and print."""
    parser = bench_parser("workers", __doc__, quick="fewer rows, and seconds")
    options = parser.parse_args()
    seconds, fills = (3.0, 1) if options.quick else (10.0, 8)
    figures: dict[str, Any] = {}
    with cluster() as nodes, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pushing = Pushing(load_spec(SPEC), nodes.url)
        for _ in range(fills):
            pushing.fill()
        for workers in (1, 2):
            with served(nodes.url, SPEC, workers) as (port, first):
                figures[str(workers)] = runner.run(measure(port, first, seconds))
    figures["load"] = round(os.getloadavg()[0], 1)
    print_figures(figures, as_json=options.json)


if __name__ == "__main__":
    main()
