"""Compares a relay with direct following of the logs: bytes per second and freshness.

`python -m tests.bench.relay [--quick] [--json]` pushes rows of a model to a store in memory, in
simulated time: 4 learners push to 4 buckets every 50 ms, rows of 18 floats chosen with a Zipf law
as ids of a CTR log are. A relay writes blocks every 20, 200 and 1,000 ms. Sizes are exact, before
compression. Freshness is simulated time from a push to the reader's rows: it includes the intervals
of polling and writing, not the network, Kafka or a busy processor.

`servers` has the same with real servers of Kafka and Valkey, see `tests.bench.relay_servers`.

The rows are those of a factorization machine with 8 dimensions: weights by FTRL, vectors by
AdaGrad. `full` relays rows as they are, `final` what the forward pass reads, `half` the same with
floats of 16 bits. No statistic reads the counters of these rows.
"""

import itertools
import json
import random

import numpy as np
from rich.console import Console
from rich.table import Table

from headrace.learner.models.final_rows import FinalRows
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.relay.log_relay import LogRelay
from headrace.pserver.relay.relay_section import RelayedColumns, RelayForm
from headrace.pserver.relay.relayed_replica import Relayed, RelayedReplica
from headrace.pserver.replica.replica import Folded, Replica
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, SourceReached, pack
from headrace.pserver.store import OffsetSpan, Push, Shape
from tests.bench.bench_options import bench_parser
from tests.bench.pserver.relay_servers import FIELD, MODEL, drawn_gains, measure_servers

_WIDTH, _BUCKETS, _LEARNERS = 18, 4, 4
_PUSH_MS, _POLL_MS = 50, 20
_ROWS_A_PUSH = 300
"""Drawn for a push of one bucket; repeated draws are one row."""
_MODEL_ROWS = 20_000
"""Of a bucket."""


class _Stream:
    """Pushes of one model, in simulated time."""

    def __init__(self) -> None:
        dice, self._draws = random.Random(1), np.random.default_rng(1)
        ticks = itertools.count()
        self.shape = Shape("bench", _BUCKETS, _WIDTH, "fingerprint", "spec")
        self.store = MemoryStore(clock_ms=lambda: next(ticks), nonces=lambda: dice.randbytes(8))
        self.store.create(self.shape)
        self._dice, self._offset = dice, 0

    def push(self, now_ms: int) -> None:
        """Push one learner's changes to every bucket."""
        start, self._offset = self._offset, self._offset + 1
        pushes = [self._push(bucket, start, now_ms) for bucket in range(_BUCKETS)]
        self.store.push(pushes)

    def _push(self, bucket: int, start: int, now_ms: int) -> Push:
        drawn = self._draws.zipf(1.1, 4 * _ROWS_A_PUSH)
        low = np.unique(drawn[drawn < _MODEL_ROWS][:_ROWS_A_PUSH]).astype(np.uint64)
        ids = np.sort(low * np.uint64(0x9E3779B9700)) | np.uint64(bucket << 62) | FIELD
        count = ids.shape[0]
        ones = np.ones(count, np.uint32)
        values = drawn_gains(self._draws, count)
        reached = [SourceReached("bench/0", start, start + 1, now_ms)]
        header = EntryHeader(_WIDTH, count, now_ms, now_ms, reached)
        blob = pack(header, RowDeltas(ids, ones, 0 * ones, ones, ones, values))
        return Push(
            bucket,
            (OffsetSpan("bench/0", start, start + 1),),
            self._dice.randbytes(8),
            blob,
        )


def measure(
    interval_ms: int | None, form: RelayedColumns | RelayForm, lasting_ms: int
) -> dict[str, float]:
    """Follow a stream; `interval_ms` of a relay, None for a replica that follows the logs."""
    stream = _Stream()
    replica = Replica(stream.store, stream.shape)
    relay = LogRelay(stream.store, replica, form)
    reader = RelayedReplica(stream.shape, restored=FinalRows(MODEL).restored)
    replica.poll()
    replica.poll()
    _ = [reader.take(blob) for _, blob in relay.blocks()]
    size, delays, waiting = 0, list[int](), list[int]()
    for now_ms in range(0, lasting_ms, 10):
        if now_ms % _PUSH_MS == 0:
            for _ in range(_LEARNERS):
                stream.push(now_ms)
            waiting.append(now_ms)
        if now_ms % _POLL_MS:
            continue
        if interval_ms is None:
            for change in replica.poll():
                if isinstance(change, Folded):
                    size += change.size_bytes
                    delays.append(now_ms - change.header.append_ms)
            continue
        relay.step()
        if now_ms % interval_ms == 0:
            for _, blob in relay.blocks():
                assert isinstance(reader.take(blob), Relayed)
                size += len(blob)
            delays += [now_ms - pushed_ms for pushed_ms in waiting]
            waiting.clear()
    return {
        "bytes_per_second": size / lasting_ms * 1000,
        "freshness_p50_ms": float(np.percentile(delays, 50)),
        "freshness_p99_ms": float(np.percentile(delays, 99)),
    }


def measure_all(*, quick: bool) -> dict[str, dict[str, float]]:
    """Return the figures of each way to follow."""
    lasting_ms = 2_000 if quick else 20_000
    every = RelayedColumns.all(_WIDTH)
    forms: dict[str, RelayedColumns | RelayForm] = {
        "full": every,
        "final": FinalRows(MODEL).form,
        "half": FinalRows(MODEL, half=True).form,
    }
    found = {"logs": measure(None, every, lasting_ms)}
    for interval_ms in (20, 200, 1000):
        for name, form in forms.items():
            found[f"relay_{name}_{interval_ms}_ms"] = measure(interval_ms, form, lasting_ms)
    direct = found["logs"]["bytes_per_second"]
    for figures in found.values():
        figures["share_of_logs"] = figures["bytes_per_second"] / direct
    return found


def main() -> None:
    """Measure and print."""
    parser = bench_parser("relay", __doc__)
    options = parser.parse_args()
    simulated = measure_all(quick=options.quick)
    servers = measure_servers(quick=options.quick)
    if options.json:
        print(json.dumps(simulated | {"servers": servers}, indent=1))
        return
    for found in (simulated, servers):
        table = Table("following", *next(iter(found.values())))
        for name, figures in found.items():
            table.add_row(name, *(f"{value:,.2f}" for value in figures.values()))
        Console().print(table)


if __name__ == "__main__":
    main()
