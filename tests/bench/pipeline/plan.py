"""Compares the processor time that `headrace plan` predicts with that of a whole pipeline.

    python -m tests.bench.plan [--quick] [--json]

The constants are those that `headrace calibrate` measures just before, with one architecture. Then
the whole pipeline except live evaluation runs in real processes, on a real Kafka and two Valkey
shards: one joiner, one learner, one keeper and one server. It gets a trickle of events, and then
two loads, one after another. A thread sends requests at a fixed rate.

The cost of processes that have next to nothing to do is the rest at the trickle that the plan does
not explain; it is added to the predictions. Everything else is predicted: nothing is fitted to the
two loads. A keeper folds entries after a minute, so a quick run leaves folding out. For each part:
busy cores `predicted` and `measured`, and `error`, their difference over the measured value.
`log_mb_per_second` compares the logs in the same way. The time between two pushes is an input of a
plan; it is the measured one, which is longer than 50 ms on a busy machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SilentSetupProgress
from headrace.deploy.operations.cost_measurement.cost_measurement import calibrate
from headrace.deploy.operations.cost_measurement.trial_model import TrialEvents, trial_spec
from headrace.deploy.operations.planning.cluster_plan import plan_cluster
from headrace.deploy.operations.planning.workload import Assumptions, Workload
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.pserver.redis_backend.node_connection import Call
from headrace.pserver.redis_backend.redis_store import RedisStore
from tests.bench.bench_options import bench_parser

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.deploy.operations.planning.unit_costs import UnitCosts
    from headrace.ingest.kafka.settings import KafkaSettings

ARCHITECTURE, FIELDS, ROWS = "logistic_regression", 20, 200_000
REQUESTS_PER_S, CANDIDATES = 20, 100
TRICKLE = 300
LOADS = (3_000, 9_000)
"""Impressions and clicks a second."""
_PARTS = {
    "joiners": "ingest join",
    "learners": "learner run",
    "keepers": "pserver keep",
    "servers": "serving run",
    "shards": "valkey-server",
}
_QUICK_WARM_S, _WARM_S = 2.5, 75.0
"""Wait after a change of load. Keepers fold entries after a minute. A quick run ends before that,
so its predictions are those without folding."""
_TICK_S = 0.01


class SteadyEvents:
    """Sends events at a rate that can be changed, from a thread."""

    def __init__(self, kafka: KafkaSettings, count: int) -> None:
        self._writer = KafkaWriter(kafka)
        self._impressions, clicks = TrialEvents(FIELDS, ROWS).events(count)
        names = [json.loads(each)["impression_id"] for each in self._impressions]
        clicked = {json.loads(each)["impression_id"]: each for each in clicks}
        self._events = [
            (name, each, clicked.get(name))
            for name, each in zip(names, self._impressions, strict=True)
        ]
        self._stop, self._next = threading.Event(), 0
        self._thread = threading.Thread(target=self._run)
        self.rate, self.sent = float(TRICKLE), 0

    def __enter__(self) -> SteadyEvents:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        due_s, owed = time.monotonic(), 0.0
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            due_s += _TICK_S
            owed += self.rate * _TICK_S
            while owed >= 1.0:
                owed -= self._send()

    def _send(self) -> int:
        name, impression, click = self._events[self._next % len(self._events)]
        self._next += 1
        sent = 1
        self._writer.send(Source("impressions", BY_KEY), impression, name.encode())
        if click is not None:
            self._writer.send(Source("clicks", BY_KEY), click, name.encode())
            sent = 2
        self.sent += sent
        return sent


class Requests:
    """Sends requests at a fixed rate, from a thread."""

    def __init__(self, address: str, model: str) -> None:
        self._url = f"{address}/v1/models/{model}:predict"
        events = TrialEvents(FIELDS, ROWS, seed=2)
        self._bodies = [events.request(CANDIDATES) for _ in range(50)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Requests:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic()
        with httpx.Client() as client:
            for body in itertools.cycle(self._bodies):
                if self._stop.wait(max(0.0, due_s - time.monotonic())):
                    return
                client.post(self._url, content=body).raise_for_status()
                due_s += 1.0 / REQUESTS_PER_S


class Meter:
    """Busy cores of each part, and bytes of the logs."""

    def __init__(self, redis: RedisStore, buckets: int) -> None:
        self._store, self._buckets = redis, range(buckets)

    def measure(self, seconds: float, events: SteadyEvents) -> dict[str, float]:
        """Return the busy cores by part, the logs' bytes, events and the time between pushes."""
        began_s, before = time.monotonic(), _spent_s()
        before_mb, before_entries = self._sum("appended_bytes") / 1e6, self._sum("version")
        before_sent = events.sent
        time.sleep(seconds)
        lasted_s, after = time.monotonic() - began_s, _spent_s()
        found = {part: (after[part] - before[part]) / lasted_s for part in _PARTS}
        found["log_mb_per_second"] = (self._sum("appended_bytes") / 1e6 - before_mb) / lasted_s
        entries = (self._sum("version") - before_entries) / lasted_s
        found["push_interval_ms"] = 1000.0 * len(self._buckets) / entries
        found["events_per_second"] = (events.sent - before_sent) / lasted_s
        return found

    def _sum(self, field: str) -> float:
        """Return a number of the buckets' marks, summed over all buckets."""
        keys = [self._store.key(bucket, "marks") for bucket in self._buckets]
        calls = [Call(key, ("HGET", key, field)) for key in keys]
        return float(sum(int(str(reply, "ascii")) for reply in self._store.nodes.run(calls)))


def _spent_s() -> dict[str, float]:
    """Return the processor seconds of every part's processes so far."""
    found = dict.fromkeys(_PARTS, 0.0)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command, times = " ".join(process.cmdline()), process.cpu_times()
            for part, words in _PARTS.items():
                if words in command:
                    found[part] += times.user + times.system
    return found


def predict(
    costs: UnitCosts, look: dict[str, float], buckets: int, *, folding: bool
) -> dict[str, float]:
    """Return the planner's busy cores by part and log bytes, for one process of each part."""
    spec = trial_spec(ARCHITECTURE, FIELDS)
    load = Workload(
        *(look["events_per_second"], ROWS, FIELDS, ARCHITECTURE, spec.width),
        requests_per_second=REQUESTS_PER_S,
        candidates=CANDIDATES,
        buckets=buckets,
        push_interval_ms=look["push_interval_ms"],
        store_copies=1,
    )
    if not folding:
        load = replace(load, keep_interval_ms=1e8, keep_bucket_bytes=1e8)
    plan = plan_cluster(Assumptions(load), costs)
    found = {part.name: part.cores for part in plan.parts}
    # a plan has two keepers and two servers; keepers share the work, servers repeat it
    following = costs.follow.cores(spec.width, plan.pushed_rows_per_second, plan.entries_per_second)
    reading = costs.store_read.cores(
        spec.width, plan.pushed_rows_per_second, plan.entries_per_second
    )
    found["servers"] -= following
    found["shards"] -= reading
    return found | {"log_mb_per_second": plan.log_mb_per_second}


def compare(
    costs: UnitCosts, looks: Sequence[dict[str, float]], buckets: int, *, folding: bool
) -> dict[str, Any]:
    """Return predictions beside measurements; the first look is the trickle."""
    trickle, *loads = looks
    explained = predict(costs, trickle, buckets, folding=folding)
    resting = {part: trickle[part] - explained[part] for part in _PARTS}
    found: dict[str, Any] = {"resting_cores": resting}
    for look in loads:
        expected = predict(costs, look, buckets, folding=folding)
        rows = {}
        for name in (*_PARTS, "log_mb_per_second"):
            predicted = expected[name] + resting.get(name, 0.0)
            error = (predicted - look[name]) / look[name]
            rows[name] = {"predicted": predicted, "measured": look[name], "error": error}
        rows["push_interval_ms"] = {"measured": look["push_interval_ms"]}
        found[f"{look['events_per_second']:,.0f} events/s"] = rows
    return found


def measure(*, quick: bool) -> dict[str, Any]:
    """Calibrate, run the pipeline, and compare."""
    seconds, warm_s = (7.0, _QUICK_WARM_S) if quick else (60.0, _WARM_S)
    costs = calibrate([ARCHITECTURE], 0.3 if quick else 1.0, lambda _: None)
    text = trial_spec(ARCHITECTURE, FIELDS).text
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
        path = Path(directory) / "trial.toml"
        path.write_text(text)
        settings = PipelineSettings(model=path, evaluated=False)
        pipeline = LocalPipeline(settings, SilentSetupProgress())
        longest = int((sum(LOADS) + TRICKLE) * (seconds + warm_s) * 1.1)
        with pipeline:
            pipeline.start(threading.Event())
            assert isinstance(pipeline.store, RedisStore)
            meter, looks = Meter(pipeline.store, settings.buckets), list[dict[str, float]]()
            with (
                SteadyEvents(pipeline.kafka, longest) as events,
                Requests(pipeline.address, pipeline.spec.name),
            ):
                for rate in (TRICKLE, *LOADS):
                    events.rate = float(rate)
                    time.sleep(warm_s)
                    looks.append(meter.measure(seconds, events))
                    pipeline.check()
    found = compare(costs, looks, settings.buckets, folding=not quick)
    return {"constants": msgspec.to_builtins(costs)} | found


def main() -> None:
    """Measure and print."""
    parser = bench_parser("plan", __doc__)
    options = parser.parse_args()
    found = measure(quick=options.quick)
    if options.json:
        print(json.dumps(found))
        return
    table = Table("load", "of", "predicted", "measured", "error")
    for name, rows in found.items():
        if name.endswith("events/s"):
            for part, row in itertools.islice(rows.items(), len(rows) - 1):
                figures = (
                    f"{row['predicted']:.3f}",
                    f"{row['measured']:.3f}",
                    f"{row['error']:+.0%}",
                )
                table.add_row(name, part, *figures)
    Console().print(table)
    print(f"load average of the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
