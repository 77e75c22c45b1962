"""Builds examples in columns from entries of the window state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.core.byte_arena import ID_BYTES, read_bytes, read_lengths
from headrace.ingest.joiner.core.window_state import WindowRings

if TYPE_CHECKING:
    from headrace.ingest.joiner.core.rules import JoinedRows


Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


def gather(fields: FieldSet, rings: WindowRings, joined: JoinedRows, watermark_ms: int) -> Examples:
    """Return the examples of `joined`; call this before `reserve` or `release` moves their rows."""
    count = int(joined.counts[0])
    if count == 0:
        return Examples.empty(fields, watermark_ms)
    opened, arena = rings.open, rings.arena
    places = joined.sequences[:count] & (opened.starts.shape[0] - 1)
    strings = 2 + len(fields.slice_by)
    lengths = np.empty((count, strings + len(fields.bags)), np.int32)
    starts = opened.starts[places]
    read_lengths(arena, starts, lengths)
    columns = [_strings(arena, starts, lengths[:, j] - 1) for j in range(strings)]
    items = lengths[:, strings:]
    bag_offsets = np.zeros(items.size + 1, np.int32)
    np.cumsum(items.reshape(-1), out=bag_offsets[1:])
    bag_bytes, _ = _bytes(arena, starts, items.sum(axis=1, dtype=np.int32) * np.int32(ID_BYTES))
    numbers, weights = opened.numbers[places], None
    if fields.weights.declared:
        own = numbers[:, -1] if fields.weights.source else np.ones(count, np.float32)
        weights = fields.weights.of_kept(joined.labels[:count], own)
        numbers = np.ascontiguousarray(numbers[:, : len(fields.numbers)])
    return Examples(
        fingerprint=fields.fingerprint,
        watermark_ms=watermark_ms,
        kinds=joined.kinds[:count].copy(),
        labels=joined.labels[:count].copy(),
        event_ms=joined.event_ms[:count].copy(),
        shown_ms=joined.shown_ms[:count].copy(),
        append_ms=joined.append_ms[:count].copy(),
        impression_ids=columns[0],
        request_ids=columns[1],
        features=Encoded(opened.ids[places], bag_bytes.view(np.uint64), bag_offsets, numbers),
        slices=dict(zip(fields.slice_by, columns[2:], strict=True)),
        weights=weights,
        negative_rate=fields.weights.negative_rate,
    )


def _strings(arena: Bytes, starts: Longs, lengths: Lengths) -> pa.StringArray:
    null = lengths < 0
    data, offsets = _bytes(arena, starts, np.maximum(lengths, 0))
    valid = None
    if null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), lengths.shape[0], buffers)


def _bytes(arena: Bytes, starts: Longs, sizes: Lengths) -> tuple[Bytes, Lengths]:
    """Return the next `sizes` bytes of each run in one array, and their offsets.

    Moves `starts` past them.
    """
    offsets = np.zeros(sizes.shape[0] + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    read_bytes(arena, starts, offsets, data)
    return data, offsets
