"""From entries of the joiner back to columns: the examples of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numba import njit

from ingest.chunks import BYTES_AN_ID
from ingest.examples import Encoded, Examples

if TYPE_CHECKING:
    import numpy.typing as npt

    from ingest.fields import FieldSet
    from ingest.join_rules import Made
    from ingest.window import OpenRows


def gather(fields: FieldSet, held: OpenRows, made: Made, watermark_ms: int) -> Examples:
    """Return the examples in `made`, whose entries' rows nothing has overwritten yet."""
    count = int(made.counts[0])
    if count == 0:
        return Examples.empty(fields, watermark_ms)
    places = made.sequences[:count] & (held.event_ms.shape[0] - 1)
    lengths = held.lengths[places]
    at = held.starts[places] & (held.arena.shape[0] - 1)
    strings = 2 + len(fields.slice_by)
    columns = [_strings(held.arena, at, lengths[:, j]) for j in range(strings)]
    items = lengths[:, strings:]
    offsets = np.zeros(count * items.shape[1] + 1, np.int32)
    np.cumsum(items.reshape(-1) // BYTES_AN_ID, out=offsets[1:])
    data, _ = _runs(held.arena, at, items.sum(axis=1, dtype=np.int32))
    return Examples(
        fingerprint=fields.fingerprint,
        watermark_ms=watermark_ms,
        kinds=made.kinds[:count].copy(),
        labels=made.labels[:count].copy(),
        event_ms=made.event_ms[:count].copy(),
        shown_ms=held.event_ms[places],
        append_ms=made.append_ms[:count].copy(),
        impression_ids=columns[0],
        request_ids=columns[1],
        features=Encoded(held.ids[places], data.view(np.uint64), offsets, held.numbers[places]),
        slices=dict(zip(fields.slice_by, columns[2:], strict=True)),
    )


def _strings(
    arena: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32]
) -> pa.StringArray:
    null = lengths < 0
    data, offsets = _runs(arena, at, np.maximum(lengths, 0))
    valid = None
    if null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), lengths.shape[0], buffers)


def _runs(
    arena: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], sizes: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the runs that begin at `at` as one array, and their offsets; move `at` past them."""
    offsets = np.zeros(sizes.shape[0] + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    _copy_runs(arena, at, offsets, data)
    return data, offsets


@njit(cache=True, nogil=True)
def _copy_runs(arena, at, offsets, data):  # type: ignore[no-untyped-def]
    for i in range(at.shape[0]):
        size = offsets[i + 1] - offsets[i]
        for k in range(size):
            data[offsets[i] + k] = arena[at[i] + k]
        at[i] += size
