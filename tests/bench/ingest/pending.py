"""Measures the memory of a pending impression: a joiner's core filled as in a busy hour.

    python -m tests.bench.pending [--pending 36000000] [--policy window] [--quick] [--json]

One partition gets impressions of 12 fields until the given number is pending, and as many again are
in the second window, which still detects duplicates. Ids of impressions and requests have 32
characters, as in the joiner's benchmark. The figure is the largest resident set of this process,
growth of the rings included, minus its size before the first impression.
"""

import os

import numpy as np
import psutil

from headrace.ingest.features.fields import FieldSet, Policy
from headrace.ingest.joiner.core.input import ChunkReader, EventChunk, EventSide, only_read
from headrace.ingest.joiner.core.join import PartitionJoiner
from headrace.ingest.kafka.protocols import MessageBlock, Source
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.ingest import joining

_CHUNK = 4_000
_DELAY_MS = 5


def bytes_per_pending(pending: int, policy: Policy = Policy.WINDOW) -> float:
    """Return bytes of memory for each of `pending` impressions."""
    fields = joining.fields_of(policy)
    some = _chunk(fields)
    _fill(fields, some, 10 * _CHUNK)  # what is compiled or read but once is so now
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    return float(_fill(fields, some, pending) - before) / pending


def _fill(fields: FieldSet, some: EventChunk, pending: int) -> int:
    """Take impressions until two windows are full; return the largest resident set on the way."""
    dice = np.random.default_rng(5)
    process, largest = psutil.Process(os.getpid()), 0
    joiner, window_ms = PartitionJoiner(fields), fields.label.window_ms
    joiner.ended(EventSide.CLICKS)
    taken, step = 0, np.arange(_CHUNK)
    while joiner.window.known < 2 * pending or joiner.window.pending < pending:
        event_ms = joining.START_MS + (taken + step) * window_ms // pending
        offsets = taken + step
        taken += _CHUNK
        hashes = dice.integers(0, 1 << 64, _CHUNK, np.uint64)
        append_ms = event_ms + _DELAY_MS
        arrays = some.arrays._replace(event_ms=event_ms, append_ms=append_ms, hashes=hashes)
        arrays = only_read(arrays)
        joiner.offer(EventChunk(some.side, taken, offsets, arrays, some.rows, some.block, {}))
        joiner.ended(EventSide.IMPRESSIONS)
        while joiner.queued(EventSide.IMPRESSIONS):
            joiner.advance(0)
        largest = max(largest, process.memory_info().rss)
        if taken > 2.1 * pending:
            break
    assert joiner.window.pending >= 0.99 * pending, (joiner.window.pending, joiner.window.known)
    assert joiner.window.known >= 1.98 * pending, (joiner.window.pending, joiner.window.known)
    return largest


def _chunk(fields: FieldSet) -> EventChunk:
    values = [value for is_click, _, value in joining.events(_CHUNK) if not is_click]
    offsets = np.arange(_CHUNK)
    block = MessageBlock(Source("shown", 0), offsets, offsets, values, [None] * _CHUNK)
    return ChunkReader(fields).read(EventSide.IMPRESSIONS, block._replace(append_ms=offsets * 0))


def main() -> None:
    """Measure and print."""
    parser = bench_parser("pending", "Memory of the joiner.", quick="half a million pending")
    parser.add_argument("--pending", type=int, default=36_000_000, help="an hour at 10,000/s")
    parser.add_argument("--policy", type=Policy, choices=list(Policy), default=Policy.WINDOW)
    chosen = parser.parse_args()
    pending = min(chosen.pending, 500_000) if chosen.quick else chosen.pending
    found = {"bytes_per_pending": bytes_per_pending(pending, chosen.policy)}
    print_figures(found, as_json=chosen.json)


if __name__ == "__main__":
    main()
