"""The variable-length part of an impression as one run of bytes: strings and bags.

A run has first the lengths, each as a LEB128 number: for a string its bytes plus one, 0 for null;
for a bag its items. Then follow the bytes of the strings and the ids of the bags, in order. A run
is written when an impression is accepted and read when an example is made, by the same process: the
format is never stored.
"""

import numpy as np

from headrace.runtime.kernels.numba_kernels import inlined, kernel

ID_BYTES = 8
LONGEST_LENGTH_BYTES = 5
"""LEB128 bytes of a length below 2^31."""


@inlined
def write_run(arena, at, rows, i):  # type: ignore[no-untyped-def]
    """Write the strings and bags of event `i` of `rows`; return the end of the run."""
    strings = rows.lengths.shape[1]
    bags = (rows.bag_offsets.shape[0] - 1) // rows.lengths.shape[0]
    for j in range(strings):
        at = _write_length(arena, at, rows.lengths[i, j] + 1)
    for j in range(i * bags, i * bags + bags):
        at = _write_length(arena, at, rows.bag_offsets[j + 1] - rows.bag_offsets[j])
    for j in range(strings):
        begin = rows.begins[i, j]
        for k in range(rows.lengths[i, j]):
            arena[at + k] = rows.data[begin + k]
        at += max(0, rows.lengths[i, j])
    if bags:
        begin = np.int64(rows.bag_offsets[i * bags]) * ID_BYTES
        size = np.int64(rows.bag_offsets[i * bags + bags]) * ID_BYTES - begin
        for k in range(size):
            arena[at + k] = rows.bag_bytes[begin + k]
        at += size
    return at


@kernel
def read_lengths(arena, starts, lengths):  # type: ignore[no-untyped-def]
    """Read the lengths of each run; move `starts` past them."""
    for i in range(starts.shape[0]):
        at = starts[i] & (arena.shape[0] - 1)
        for j in range(lengths.shape[1]):
            length, shift = np.int64(0), 0
            while arena[at] & 0x80:
                length |= np.int64(arena[at] & 0x7F) << shift
                shift += 7
                at += 1
            lengths[i, j] = length | np.int64(arena[at]) << shift
            at += 1
        starts[i] = at


@kernel
def read_bytes(arena, starts, offsets, data):  # type: ignore[no-untyped-def]
    """Copy the next `offsets[i + 1] - offsets[i]` bytes of each run; move `starts` past them."""
    for i in range(starts.shape[0]):
        size = offsets[i + 1] - offsets[i]
        for k in range(size):
            data[offsets[i] + k] = arena[starts[i] + k]
        starts[i] += size


@inlined
def _write_length(arena, at, length):  # type: ignore[no-untyped-def]
    while length >= 0x80:
        arena[at] = np.uint8(length & 0x7F | 0x80)
        length >>= 7
        at += 1
    arena[at] = np.uint8(length)
    return at + 1
