"""Measures followers of the logs beside followers of a relay, on a real Kafka and Valkey.

    python -m tests.bench.relay [--quick] [--json]

A thread pushes to one Valkey server what a learner pushes: 20 rounds a second, 8 buckets, 100 draws
of ids by a Zipf law in each, 18 floats a row. Each round has a click. Three followers, as in
servers, run in threads of this process. First all three follow the logs; then the relay runs in a
thread and all three read its topic, with an interval of 20, 200 and 1,000 ms; then every 200 ms
with final weights, in 32 and in 16 bits. Each part has a new model. A quick run leaves out 20 and
1,000 ms.

`store_mb_per_second`: bytes that the Valkey server sends in all, to followers, relay and pusher.
`follower_mb_per_second`: bytes of entries or blocks that one follower reads, before compression.
`share_of_pushed`: the same over the bytes pushed in that part. Compare these and not the bytes of
different parts: on a busy machine, the pusher does not hold its rate.
`p50_ms`, `p99_ms`: from a click's push to the rows of a follower, as servers measure freshness. All
threads share one interpreter, which lengthens the times.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

import numpy as np
import numpy.typing as npt

from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.models.final_rows import FinalRows
from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.pserver.relay.relay_section import RelayForm
from headrace.pserver.replica.replica import Change, Folded, Replica
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, SourceReached, pack
from headrace.pserver.store import OffsetSpan, Push, Shape
from headrace.runtime.clock import wall_ms
from headrace.serving.relaying.relay_loop import RelayPolicy
from headrace.serving.relaying.relay_process import RelaySettings, run_relay
from headrace.serving.relaying.relayed_rows import RelayedRows, topic_reader
from headrace.serving.replicas.follower import Follower, Following
from tests.bench.bench_options import bench_parser, print_figures

MODEL = parse_spec(
    """
[model]
name = "bench"
architecture = "factorization_machine"
dimensions = 8
[fields.article]
number = 1
transform = "id"
""",
    "bench.toml",
)
FIELD = np.uint64(1)
"""Number of the field, in the last bits of an id."""
BUCKETS, WIDTH = 8, MODEL.width
FOLLOWERS = 3
INTERVALS_MS = (20, 200, 1_000)
_ROUND_S, _DRAWS, _ROWS = 0.05, 100, 20_000
_WARM_S = 3.0


class PushThread:
    """Pushes rounds until the block ends."""

    def __init__(self, redis: str, shape: Shape) -> None:
        self._redis, self._shape, self._stop = redis, shape, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._dice, self._offset = np.random.default_rng(1), 0
        self.pushed_bytes = 0

    def __enter__(self) -> PushThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(open_store(self._redis, self._shape.model)) as store:
            due_s = time.monotonic()
            while not self._stop.wait(max(0.0, due_s - time.monotonic())):
                due_s += _ROUND_S
                start, self._offset = self._offset, self._offset + 1
                pushes = [self._push(bucket, start) for bucket in range(BUCKETS)]
                self.pushed_bytes += sum(len(push.blob) for push in pushes)
                for answer in store.push(pushes):
                    if isinstance(answer, Exception):
                        raise answer

    def _push(self, bucket: int, start: int) -> Push:
        drawn = self._dice.zipf(1.1, 4 * _DRAWS)
        low = np.unique(drawn[drawn < _ROWS][:_DRAWS]).astype(np.uint64)
        ids = np.sort(low * np.uint64(0x9E3779B9700)) | np.uint64(bucket << 61) | FIELD
        ones, now_ms = np.ones(ids.shape[0], np.uint32), wall_ms()
        values = drawn_gains(self._dice, ids.shape[0])
        clicks = [(start, now_ms)] if not bucket else []
        reached = [SourceReached("bench/0", start, start + 1, now_ms, clicks)]
        header = EntryHeader(WIDTH, ids.shape[0], now_ms, now_ms, reached)
        blob = pack(header, RowDeltas(ids, ones, 0 * ones, ones, ones, values))
        span = OffsetSpan("bench/0", start, start + 1)
        return Push(bucket, (span,), secrets.token_bytes(8), blob)


class CountingReplica(Replica):
    """A replica that sums the bytes it read."""

    bytes_read = 0

    def poll(self, limit: int = 64) -> list[Change]:
        """Poll, and count."""
        changes = super().poll(limit)
        self.bytes_read += sum(each.size_bytes for each in changes if isinstance(each, Folded))
        return changes


def measure(
    node: ValkeyNode,
    pusher: PushThread,
    sources: Sequence[CountingReplica | RelayedRows],
    seconds: float,
) -> dict[str, float]:
    """Follow for so long with one follower for each source."""
    samples: list[int] = []
    followers = [Follower(source, Following(), wall_ms, samples.extend) for source in sources]
    for follower in followers:
        follower.start()
    while not all(follower.status.complete for follower in followers):
        time.sleep(0.05)
    time.sleep(_WARM_S)
    samples.clear()
    before, began_s, pushed = _sent_mb(node), time.monotonic(), pusher.pushed_bytes
    read_mb = sum(source.bytes_read for source in sources) / 1e6
    time.sleep(seconds)
    lasted_s = time.monotonic() - began_s
    sent = (_sent_mb(node) - before) / lasted_s
    read = (sum(source.bytes_read for source in sources) / 1e6 - read_mb) / lasted_s
    pushed_mb = (pusher.pushed_bytes - pushed) / 1e6 / lasted_s
    for follower in followers:
        follower.stop()
    p50, p99 = np.percentile(samples, (50, 99))
    return {
        "store_mb_per_second": sent,
        "pushed_mb_per_second": pushed_mb,
        "follower_mb_per_second": read / len(sources),
        "share_of_pushed": read / len(sources) / pushed_mb,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }


def _sent_mb(node: ValkeyNode) -> float:
    lines = node.call("INFO", "stats").splitlines()
    name = "total_net_output_bytes:"
    return sum(int(line[len(name) :]) for line in lines if line.startswith(name)) / 1e6


def drawn_gains(dice: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    """Return what rows gain: values of either sign, and sums of squares (1, and the last 8)."""
    values = dice.normal(0, 0.01, (count, WIDTH)).astype(np.float32)
    values[:, [1, *range(WIDTH - 8, WIDTH)]] **= 2
    return values


def _measured(
    machine: LocalServices,
    name: str,
    interval_ms: int | None,
    seconds: float,
    form: RelayForm | None = None,
) -> dict[str, float]:
    """Measure a new model; interval_ms: of its relay, None for followers of the logs."""
    node, kafka = machine.valkey_node, KafkaSettings(machine.kafka)
    assert node is not None
    shape = Shape(f"relayed-{name}", BUCKETS, WIDTH, "fingerprint", "spec")
    with ExitStack() as stack:
        stores = [open_store(machine.redis, shape.model) for _ in range(FOLLOWERS + 1)]
        for store in stores:
            stack.callback(store.close)
        stores[0].create(shape)
        pusher = stack.enter_context(PushThread(machine.redis, shape))
        if interval_ms is None:
            replicas = [CountingReplica(each, shape) for each in stores[1:]]
            return measure(node, pusher, replicas, seconds)
        stop = threading.Event()
        settings = RelaySettings(RelayPolicy(interval_ms))
        thread = threading.Thread(target=run_relay, args=(settings, kafka, stores[0], stop, form))
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        opened = topic_reader(kafka, shape.model)
        restored = FinalRows(MODEL).restored
        rows = [RelayedRows(shape, opened, restored=restored) for _ in range(FOLLOWERS)]
        for each in rows:
            stack.callback(each.close)
        return measure(node, pusher, rows, seconds)


def measure_all(*, quick: bool) -> dict[str, dict[str, float]]:
    """Return the figures of followers of the logs, and of each interval of a relay."""
    seconds = 6.0 if quick else 30.0
    with LocalServices() as machine:
        found = {"logs": _measured(machine, "logs", None, seconds)}
        for interval_ms in (200,) if quick else INTERVALS_MS:
            name = f"relay_{interval_ms}_ms"
            found[name] = _measured(machine, name, interval_ms, seconds)
        for form, half in (("final", False), ("half", True)):
            written = FinalRows(MODEL, half=half).form
            name = f"relay_{form}_200_ms"
            found[name] = _measured(machine, name, 200, seconds, written)
    return found


def main() -> None:
    """Measure and print."""
    options = bench_parser("relay", __doc__).parse_args()
    print_figures(measure_all(quick=options.quick), as_json=options.json)


if __name__ == "__main__":
    main()
