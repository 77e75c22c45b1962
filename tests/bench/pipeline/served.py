"""Measures the accuracy of served answers at multiples of real time, beside that of the learner.

    python -m tests.bench.served [--quick] [--json] [--speed N ...] [--hours N]

The sample week (`HEADRACE_WEEK`, default `../shared/data/ebnerd_week1`) passes through the whole
pipeline, in real processes on a real Kafka and a Valkey Cluster. Before any event of a request is
sent, a client asks the server to rank its candidates (`deploy.reports.ranking_client`). For each
speed the benchmark reports what became of the requests, the server's freshness, and the accuracy of
its answers. Beside that is the accuracy of the learner's scores of the same impressions, which are
made in the order of events.

`--lags` starts no processes. It answers requests from the same model in memory, as of so many
seconds of the log earlier: the cost of staleness alone.

`--quick` takes the first hours, at twice that speed.
"""

import json
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from headrace.deploy.local.background_replay import BackgroundReplay
from headrace.deploy.local.drain import DrainTimeout
from headrace.deploy.local.pipeline import PRODUCTION, LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SilentSetupProgress
from headrace.deploy.reports.observer import ask_server
from headrace.deploy.reports.ranking_client import RankingClient, RequestStats
from headrace.ingest.logs.ndjson import DirectoryLog
from tests.bench.bench_options import bench_parser
from tests.bench.ebnerd.week import WEEK, lagging, leave_without, read_events
from tests.bench.pipeline.served_comparison import served_beside_learned

SPEC = Path(__file__).parents[3] / "deploy" / "models" / "news.toml"
QUICK_HOURS, QUICK_SPEEDS = 5.0, (1200.0,)
LAGS_S = (0.0, 60.0, 300.0, 1800.0)


def cut(directory: Path, hours: float, into: Path) -> Path:
    """Write the beginning of a log; return where."""
    log, first_ms = DirectoryLog(directory), None
    into.mkdir()
    with (
        (into / "impressions.ndjson").open("wb") as shown,
        (into / "clicks.ndjson").open("wb") as clicked,
    ):
        for line in log.lines():
            first_ms = line.time_ms if first_ms is None else first_ms
            if line.time_ms - first_ms > hours * 3_600_000:
                break
            (clicked if line.is_click else shown).write(line.value + b"\n")
    return into


def measure(data: Path, speed: float) -> dict[str, Any]:
    """Replay a log with every request served first; return what came of it."""
    stop = threading.Event()
    with LocalPipeline(
        PipelineSettings(model=SPEC, evaluated=False), SilentSetupProgress()
    ) as road:
        road.start(stop)
        url = f"{road.address}/v1/models/{PRODUCTION}:rank"
        with RankingClient(url, road.spec.fields) as client:
            log = BackgroundReplay(road.kafka, road.spec, [data], speed, before=client.ask)
            log.start()
            log.join()
        seconds = time.monotonic() - log.began_s
        if log.failure is not None:
            raise log.failure
        road.arrival.wait(stop, DrainTimeout(), lambda _: road.check())
        beside = served_beside_learned(road.kafka, road.spec, client.served())
        server, asked = ask_server(road.address, road.spec.name, 5.0), client.asked
    assert server is not None
    return {
        "speed": speed,
        "seconds": seconds,
        "requests": asked.requests,
        "answered": asked.answered,
        "late": asked.late,
        "unanswered": asked.unanswered,
        "refused": asked.refused,
        "answer_ms": {"p50": _quantile_ms(asked, 0.5), "p99": _quantile_ms(asked, 0.99)},
        "freshness_ms": {"p50": server.p50_ms, "p99": server.p99_ms},
        "impressions": len(beside.served),
        "served": asdict(beside.served.progressive()),
        "learned": asdict(beside.learned.progressive()),
    }


def _quantile_ms(asked: RequestStats, share: float) -> float | None:
    """Return a quantile of the latency; None without answers."""
    return 1000 * float(np.quantile(asked.took_s, share)) if asked.took_s else None


def measure_lags(data: Path, lags_s: Sequence[float]) -> list[dict[str, Any]]:
    """Answer every request in memory from what was learned so long before it."""
    from headrace.learner.spec.model_spec import load_spec

    events = read_events(data)
    return [
        {"lag_s": lag_s} | asdict(lagging(load_spec(SPEC), events, int(1000 * lag_s)))
        for lag_s in lags_s
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("served", __doc__, quick="the first hours only")
    parser.add_argument("--speed", type=float, action="append", help="times real time; repeatable")
    parser.add_argument("--hours", type=float, help="of the log; default: all of it")
    parser.add_argument("--lags", action="store_true", help="in memory, by lack of freshness")
    options = parser.parse_args(arguments)
    leave_without(WEEK)
    hours = options.hours or (QUICK_HOURS if options.quick else None)
    with tempfile.TemporaryDirectory(prefix="headrace-served-") as directory:
        data = WEEK if hours is None else cut(WEEK, hours, Path(directory) / "log")
        if options.lags:
            found = measure_lags(data, LAGS_S)
        else:
            speeds = options.speed or (QUICK_SPEEDS if options.quick else (600.0,))
            found = [measure(data, speed) for speed in speeds]
    if options.json:
        print(json.dumps(found))
        return
    print(json.dumps(found, indent=2))
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
