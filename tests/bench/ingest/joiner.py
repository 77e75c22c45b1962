"""Measures the joiner from Kafka to Kafka on one core, and the memory of a pending impression.

    python -m tests.bench.joiner [--quick] [--json]

A Kafka of its own is filled with impressions of 12 fields and with clicks on one in ten of them.
Then a joiner process joins them, bound to one core. Consumer, producer and transactions share that
core; the broker has the others.

    impressions_per_second        from the joiner's first commit to its last, by Kafka's offsets
    impressions_per_cpu_second    the same per second of the joiner's processor time: the rate of a
                                  core of its own on a busy machine
    bytes_per_pending             memory of the joiner's core per impression in the open window,
                                  see `tests.bench.pending`; the policies differ by less than one
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from headrace.deploy.local.services.kafka import KafkaNode
from headrace.ingest.features.fields import Policy
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, topics_for
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.ingest import joining
from tests.ingest.joiner.joined import Joined
from tests.running_server import jars, running_server

ROOT = Path(__file__).parents[3]
TOPICS = EventTopics("shown", "clicked", "dead")
DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of a run."""

    impressions: int
    pending: int


QUICK = Size(400_000, 500_000)
WHOLE = Size(3_000_000, 36_000_000)


def fill(joined: Joined, impressions: int) -> None:
    """Write the events."""
    writer = KafkaWriter(joined.settings, linger_ms=20)
    targets = [Source(TOPICS.impressions, BY_KEY), Source(TOPICS.clicks, BY_KEY)]
    for is_click, identity, event in joining.events(impressions):
        writer.send(targets[is_click], event, identity.encode())
    writer.close()


def measure(joined: Joined, impressions: int) -> Rate:
    """Run the joiner over all of them, bound to one core."""
    with joined.process() as process:
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        return _rate(process, lambda: joined.state.read().impressions, impressions)


class Rate(NamedTuple):
    """Impressions a second."""

    of_wall: float
    of_cpu: float


def _rate(process: subprocess.Popen[bytes], done: Callable[[], int], all_of_it: int) -> Rate:
    """Return how many were done a second, from the first to the last."""
    deadline_s = time.monotonic() + DEADLINE_S
    watched = psutil.Process(process.pid)
    begin = None
    while True:
        count, now_s = done(), time.monotonic()
        if process.poll() is not None or now_s > deadline_s:
            raise RuntimeError(f"expected {all_of_it} events, found {count}")
        spent = watched.cpu_times()
        cpu_s = spent.user + spent.system
        if begin is None and count:
            begin = count, now_s, cpu_s
        elif begin is not None and count >= all_of_it:
            more = count - begin[0]
            return Rate(more / (now_s - begin[1]), more / (cpu_s - begin[2]))
        time.sleep(0.02)


def bytes_per_pending(pending: int, policy: Policy) -> float:
    """Fill a joiner core in a process that has done nothing else."""
    command = [sys.executable, "-m", "tests.bench.pending", "--json", "--policy", policy.value]
    command += ["--pending", str(pending)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    return float(json.loads(told)["bytes_per_pending"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser(
        "joiner", "Speed and memory of the joiner.", quick="400,000 impressions, not 3,000,000"
    )
    chosen = parser.parse_args(arguments)
    size = QUICK if chosen.quick else WHOLE
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        running_server(KafkaNode(Path(folder), jars(), remove=Path(folder))) as node,
    ):
        kafka, spec = KafkaSettings(node.bootstrap), joining.spec_of()
        ensure_topics(kafka, topics_for("bench", joining.PARTITIONS, TOPICS))
        joined = Joined(kafka, "bench", TOPICS, spec, joining.PARTITIONS)
        fill(joined, size.impressions)
        ours = measure(joined, size.impressions)
    results = {
        "impressions_per_second": round(ours.of_wall),
        "impressions_per_cpu_second": round(ours.of_cpu),
    }
    policies = [Policy.WINDOW] if chosen.quick else list(Policy)  # they take the same
    results["bytes_per_pending"] = round(max(bytes_per_pending(size.pending, p) for p in policies))
    print_figures(results, as_json=chosen.json)


if __name__ == "__main__":
    main()
