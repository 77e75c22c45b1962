"""Measures a server while its model is learned.

    python -m tests.bench.serving [--quick] [--json]

Real processes share two cores: a Valkey Cluster of two shards, a pusher that writes what a learner
of 2,000 examples a second would (tests.bench.serving.learning), `headrace serving run` with one
worker, which follows the shards, and a client. There are two models of the sample news, each with a
quarter of a million rows: logistic regression with crosses and row statistics (`lr`), and DeepFM
over the same inputs (`deepfm`).

`p50_ms`, `p99_ms`, `p99_9_ms`: requests of 200 candidates at a fixed rate, timed from their due
time; `refused`: how many the server refused under load. `candidates_per_second`: the same, as fast
as eight connections get answers; `requests_per_second`: likewise, one candidate. Without --quick,
times for 1, 50, 200 and 1,000 candidates (`by_candidates`).
"""

import asyncio
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from headrace.deploy.local.services.ports import free_port
from headrace.learner.spec.model_spec import load_spec
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.pserver.bench_cluster import cluster
from tests.bench.serving.asking import answers_per_second, ready, requests, waits_ms
from tests.bench.serving.learning import push_to

MODELS = Path(__file__).parents[3] / "deploy" / "models"
SPECS = {"lr": MODELS / "news.toml", "deepfm": MODELS / "news_deepfm.toml"}
CANDIDATES = 200
TIMED = {"lr": 20_000, "deepfm": 10_000}
"""Candidates a second of the requests that are timed."""
MOST_REQUESTS_PER_S = 500


@contextmanager
def pushing(url: str, spec: Path) -> Iterator[None]:
    """Make and fill the model, and push to it until the block ends."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=push_to, args=(url, spec, there), daemon=True)
    process.start()
    there.close()
    try:
        here.recv()
        yield
    finally:
        here.close()
        process.join(20)


@contextmanager
def served(url: str, spec: Path, workers: int = 1) -> Iterator[tuple[int, psutil.Process]]:
    """Serve the model until the block ends; yield the port, and the first of the processes."""
    port = free_port()
    command = [sys.executable, "-P", "-m", "headrace", "--log-level", "warning", "serving", "run"]
    of_model = ["--model", str(spec), "--redis", url, "--port", str(port)]
    process = subprocess.Popen([*command, *of_model, "--workers", str(workers)])
    try:
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def rate_of(name: str, candidates: int) -> float:
    """Return how many requests of so many candidates a second are timed."""
    return min(MOST_REQUESTS_PER_S, TIMED[name] / candidates)


async def measure(name: str, port: int, seconds: float, counts: list[int]) -> dict[str, Any]:
    """Ask the server at `port`; each measurement takes so many seconds."""
    spec = load_spec(SPECS[name])
    one, many = requests(spec, 1), requests(spec, CANDIDATES)
    await ready(port, many[0])
    await answers_per_second(port, many, 1.0)  # compiled and warm
    times: dict[str, Any] = {}
    for count in counts:
        asked, rate = requests(spec, count), rate_of(name, count)
        waits, refused = await waits_ms(port, asked, rate, seconds)
        p50, p99, p99_9 = np.percentile(waits, (50, 99, 99.9)).round(2).tolist()
        times[str(count)] = {"p50_ms": p50, "p99_ms": p99, "p99_9_ms": p99_9, "refused": refused}
    return {
        **times[str(CANDIDATES)],
        "requests_per_second": round(await answers_per_second(port, one, seconds)),
        "candidates_per_second": round(CANDIDATES * await answers_per_second(port, many, seconds)),
        "by_candidates": times,
    }


def main() -> None:
    """Measure and print."""
    parser = bench_parser("serving", __doc__, quick="seconds instead of minutes")
    options = parser.parse_args()
    seconds, counts = (3.0, [CANDIDATES]) if options.quick else (20.0, [1, 50, CANDIDATES, 1000])
    figures: dict[str, Any] = {}
    with cluster() as nodes, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name, spec in SPECS.items():
            with pushing(nodes.url, spec), served(nodes.url, spec) as (port, _):
                figures[name] = runner.run(measure(name, port, seconds, counts))
    print_figures(figures, as_json=options.json)


if __name__ == "__main__":
    main()
