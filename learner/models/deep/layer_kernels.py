"""Kernels that initialize, read and step layers, which are stored in rows."""

import numpy as np

from headrace.learner.intrinsics.simd import LANES, eight, put, take
from headrace.learner.kernels.initialization import initial, origin
from headrace.learner.kernels.optimizers import gained_at, shrink_of, step_row
from headrace.learner.kernels.row_counters import count_row
from headrace.learner.kernels.row_ids import mix
from headrace.learner.kernels.row_lookup import bucket_at, shift_of
from headrace.learner.spec.architecture import DENSE_NUMBER
from headrace.pserver.intrinsics.row_prefetch import prefetch_row
from headrace.pserver.intrinsics.row_view import row_of
from headrace.pserver.rows.table import AHEAD, fetch, find, find_or_add
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_ONE = np.float32(1.0)
_DENSE = np.uint64(DENSE_NUMBER)
_NUMBERS = np.uint64(1023)
_LAYERS = np.uint64(0x2545F4914F6CDD1D)
"""An arbitrary constant from which the ids of chunks are drawn."""


@kernel
def begin_layers(seed, bounds, ids, begun):  # type: ignore[no-untyped-def]
    """Write the ids of the chunks, and add the initial value of each coordinate to `begun`.

    bounds, begun: (chunks, coordinates); a constant initial value has a bound of 0.
    """
    start = origin(_LAYERS, seed)
    for i in range(ids.shape[0]):
        ids[i] = (mix(_LAYERS + np.uint64(i)) & ~_NUMBERS) | _DENSE
        for k in range(bounds.shape[1]):
            begun[i, k] += initial(start, i * bounds.shape[1] + k, bounds[i, k])


@inlined
def _read_layer(row, group, shrink, start, layer):  # type: ignore[no-untyped-def]
    count = layer.shape[0]
    whole = count - count % LANES
    for k in range(0, whole, LANES):
        at = eight(k)
        put(layer, 0, at, gained_at(row, group, shrink, at) + take(start, 0, at))
    for k in range(whole, count):
        layer[k] = gained_at(row, group, shrink, k) + start[k]


@kernel
def read_layers(columns, group, ids, begun, now_s, places, shrinks, layers):  # type: ignore[no-untyped-def]
    """Write the value of every coordinate of every chunk to `layers`, (chunks, coordinates).

    Writes the places of the rows to `places`, -1 for a missing row.
    """
    for begin in range(0, ids.shape[0], AHEAD):
        end = min(begin + AHEAD, ids.shape[0])
        fetch(columns.slots, columns.ids, ids, begin, end)
        for i in range(begin, end):
            places[i] = find(columns.slots, columns.ids, ids[i])
            prefetch_row(columns.values, max(places[i], 0))
        for i in range(begin, end):
            place, layer, start = places[i], row_of(layers, i), row_of(begun, i)
            shrinks[i] = _ONE
            if place < 0:
                for k in range(layer.shape[0]):
                    layer[k] = start[k]
                continue
            shrinks[i] = shrink_of(group, columns.last_seen[place], now_s)
            _read_layer(row_of(columns.values, place), group, shrinks[i], start, layer)


@kernel
def step_layers(  # type: ignore[no-untyped-def]
    columns, gaining, active, group, ids, places, shrinks, gradients, shows, clicks, now_s
):
    """Step every chunk whose bucket lacks the mini-batch, and count its examples there."""
    shift, last = shift_of(active.shape[0]), ids.shape[0] - 1
    for i in range(ids.shape[0]):
        ahead = max(places[min(i + AHEAD, last)], 0)
        prefetch_row(columns.values, ahead)
        prefetch_row(gaining.values, ahead)
        if active[bucket_at(ids[i], shift)]:
            place = places[i] if places[i] >= 0 else find_or_add(columns, ids[i])
            gradient = row_of(gradients, i)
            step_row(columns.values, gaining.values, place, group, shrinks[i], gradient)
            count_row(columns, gaining, place, shows, clicks, now_s)
