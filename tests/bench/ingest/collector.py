"""Measures how many events a second the collector acknowledges, from HTTP into Kafka.

    python -m tests.bench.collector [--quick] [--json]

One collector process, one Kafka and one process of senders share this machine. The senders have
eight connections, each with one batch of 500 events in flight; an event has 17 fields in some 380
bytes.

    events_per_second          wall time, everything included
    events_per_cpu_second      per second of processor time of all threads of the collector: the
                               rate of a core of its own
    bare_events_per_second     a producer in one process that only sends the same events: the
                               ceiling on this machine
    p50_ms, p99_ms             single events, sent one after another without other traffic
"""

import contextlib
import http.client
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import orjson
import psutil

from headrace.deploy.local.services.kafka import KafkaNode
from headrace.ingest.collector.collector_process import CollectorSettings, run_collector
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import ensure_topics, topics_for
from tests.bench.bench_options import bench_parser, print_figures
from tests.running_server import jars, running_server

CONNECTIONS = 8
BATCH_EVENTS = 500
SINGLES = 400


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run."""

    events_per_second: float
    events_per_cpu_second: float
    bare_events_per_second: float
    p50_ms: float
    p99_ms: float


def events(count: int) -> list[bytes]:
    """Return impressions of seventeen fields."""
    now_ms = time.time_ns() // 1_000_000
    fields = {f"field_{k}": f"value {k}" for k in range(12)}
    return [
        orjson.dumps(
            {
                "impression_id": f"shown-{i:09d}",
                "timestamp_ms": now_ms,
                "user_id": i % 1000,
                "article_id": str(i % 300),
                "device_type": "phone",
                **fields,
            }
        )
        for i in range(count)
    ]


def measure(count: int) -> Measured:
    """Return the figures of `count` events."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        running_server(KafkaNode(Path(folder), jars(), remove=Path(folder))) as node,
    ):
        kafka = KafkaSettings(node.bootstrap)
        ensure_topics(kafka, topics_for("bench"))
        with _collecting(kafka) as (port, process):
            _send(port, count // 5)  # everything is warm, then
            before_s = _cpu_s(process)
            sent_s = _send(port, count)
            used_s = _cpu_s(process) - before_s
            singles_ms = _singles(port)
        bare_s = _bare(kafka, count)
    p50, p99 = np.percentile(singles_ms, [50, 99])
    return Measured(count / sent_s, count / used_s, count / bare_s, float(p50), float(p99))


@contextlib.contextmanager
def _collecting(kafka: KafkaSettings) -> Iterator[tuple[int, psutil.Process]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_collector, args=(kafka.bootstrap, theirs))
    process.start()
    try:
        assert process.pid is not None
        yield ours.recv(), psutil.Process(process.pid)
    finally:
        ours.send("stop")
        process.join(30)
        process.kill()


def _collector(bootstrap: str, parent: Connection) -> None:
    stop = threading.Event()
    threading.Thread(target=_await_stop, args=(parent, stop), daemon=True).start()
    run_collector(CollectorSettings(port=0), KafkaSettings(bootstrap), stop, parent.send)


def _await_stop(parent: Connection, stop: threading.Event) -> None:
    parent.recv()
    stop.set()


def _send(port: int, count: int) -> float:
    """Send events over all connections, from another process; return the seconds it took."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_send_here, (port, count))


def _send_here(port: int, count: int) -> float:
    made = events(count)
    bodies = [
        b"\n".join(made[begin : begin + BATCH_EVENTS]) for begin in range(0, count, BATCH_EVENTS)
    ]

    def send(mine: list[bytes]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for body in mine:
            _post(connection, body, "application/x-ndjson")
        connection.close()

    threads = [
        threading.Thread(target=send, args=(bodies[i::CONNECTIONS],)) for i in range(CONNECTIONS)
    ]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began_s


def _post(connection: http.client.HTTPConnection, body: bytes, content_type: str) -> None:
    connection.request("POST", "/v1/impressions", body, {"Content-Type": content_type})
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == 200, text


def _singles(port: int) -> list[float]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for event in events(SINGLES):
        began_s = time.perf_counter()
        _post(connection, event, "application/json")
        times.append((time.perf_counter() - began_s) * 1000)
    connection.close()
    return times


def _bare(kafka: KafkaSettings, count: int) -> float:
    made = [(event, event[18:33]) for event in events(count)]
    writer, target = KafkaWriter(kafka), Source("impressions", BY_KEY)
    began_s = time.perf_counter()
    for value, key in made:
        writer.send(target, value, key)
    writer.flush()
    took_s = time.perf_counter() - began_s
    writer.close()
    return took_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    """Measure and print."""
    parser = bench_parser("collector", __doc__, quick="A fifth of the events.")
    arguments = parser.parse_args()
    measured = measure(200_000 if arguments.quick else 1_000_000)
    print_figures(asdict(measured), as_json=arguments.json)


if __name__ == "__main__":
    main()
