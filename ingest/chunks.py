"""Messages of one partition in columns: what the joiner core takes in.

A chunk is some consecutive messages of one source, decoded, with the fields of impressions already
encoded. Everything that an example will need of an impression beside its ids (its own id, its
request, the fields to slice by, its bags) lies in one run of bytes an event, so that the core can
keep it by copying that run, and in no Python object.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit

from ingest.encode import Encoder
from ingest.events import IMPRESSION_ID, REQUEST_ID, TIME, Reason, is_tick, read_event
from ingest.values import hash_strings, string_buffers, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ingest.examples import Encoded
    from ingest.fields import FieldSet
    from ingest.stream import Record

    Event = dict[str, object]

BYTES_AN_ID = 8


class Side(IntEnum):
    """Which of the two topics."""

    IMPRESSIONS = 0
    CLICKS = 1


class Role(IntEnum):
    """What a message turned out to be."""

    EVENT = 0
    TICK = 1
    REFUSED = 2


class Rows(NamedTuple):
    """What examples need of each event, in columns a compiled kernel can copy from."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    numbers: npt.NDArray[np.float32]  # (n, numbers)
    lengths: npt.NDArray[np.int32]  # (n, strings + bags) bytes, -1 for a null string
    starts: npt.NDArray[np.int64]  # (n + 1,) of each event's run in `data`
    data: npt.NDArray[np.uint8]  # strings in order, then the ids of the bags in order


class Arrays(NamedTuple):
    """The columns of a chunk."""

    roles: npt.NDArray[np.uint8]  # (n,) Role
    event_ms: npt.NDArray[np.int64]  # (n,) as the producer said; 0 if refused
    append_ms: npt.NDArray[np.int64]  # (n,)
    hashes: npt.NDArray[np.uint64]  # (n,) of the impression id


class Chunk(NamedTuple):
    """Consecutive messages of one source."""

    side: Side
    stop: int
    """First offset not covered: past the last message."""
    offsets: npt.NDArray[np.int64]  # (n,)
    arrays: Arrays
    rows: Rows
    """Of no columns for clicks, which have the fields of their impression."""
    records: Sequence[Record]
    """As they came: a dead letter quotes them."""
    refused: dict[int, Reason]
    """Why, by place in the chunk."""

    def __len__(self) -> int:
        return int(self.offsets.shape[0])


class ChunkReader:
    """Decodes messages into chunks, for one model."""

    def __init__(self, fields: FieldSet) -> None:
        self._encoder = Encoder(fields)
        self._slice_by = fields.slice_by
        self.strings = 2 + len(fields.slice_by)
        """Strings kept of each impression: its id, its request's id, then what slices."""

    def read(self, side: Side, records: Sequence[Record]) -> Chunk:
        """Return a chunk of one or more messages of one source, in the order of their offsets."""
        count = len(records)
        events: list[Event] = []
        refused: dict[int, Reason] = {}
        roles = np.zeros(count, np.uint8)
        append_ms = np.array([record.append_ms for record in records], np.int64)
        nothing: Event = {TIME: 0}
        for place, record in enumerate(records):
            event = read_event(record.value, record.append_ms)
            if isinstance(event, Reason):
                refused[place], roles[place] = event, Role.REFUSED
                event = nothing
            elif is_tick(event):
                roles[place] = Role.TICK
            events.append(event)
        offsets = np.array([record.offset for record in records], np.int64)
        identities = pa.array([event.get(IMPRESSION_ID) for event in events], pa.string())
        return Chunk(
            side,
            int(offsets[-1]) + 1,
            offsets,
            Arrays(
                roles,
                np.array([event[TIME] for event in events], np.int64),
                append_ms,
                hash_strings(identities),
            ),
            self._rows(events, identities) if side is Side.IMPRESSIONS else no_rows(count),
            records,
            refused,
        )

    def _rows(self, events: list[Event], identities: pa.StringArray) -> Rows:
        encoded = self._encoder.encode(events)
        requests = texts([event.get(REQUEST_ID) for event in events])
        slices = [texts([event.get(name) for event in events]) for name in self._slice_by]
        return woven(encoded, [identities, requests, *slices])


def no_rows(count: int) -> Rows:
    """Return rows of no columns."""
    return Rows(
        np.zeros((count, 0), np.uint64),
        np.zeros((count, 0), np.float32),
        np.zeros((count, 0), np.int32),
        np.zeros(count + 1, np.int64),
        np.zeros(0, np.uint8),
    )


def woven(encoded: Encoded, strings: list[pa.StringArray]) -> Rows:
    """Return columns of strings, and bags, as one run of bytes an event."""
    count = len(encoded)
    bags = (encoded.bag_offsets.shape[0] - 1) // count
    lengths = np.zeros((count, len(strings) + bags), np.int32)
    for j, column in enumerate(strings):
        lengths[:, j] = np.diff(string_buffers(column)[0])
        if column.null_count:
            lengths[column.is_null().to_numpy(zero_copy_only=False), j] = -1
    items = np.diff(encoded.bag_offsets).reshape(count, bags)
    lengths[:, len(strings) :] = items * BYTES_AN_ID
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0).sum(axis=1), out=starts[1:])
    data = np.empty(int(starts[-1]), np.uint8)
    at = starts[:-1].copy()
    for column in strings:
        _weave(*string_buffers(column), at, data)
    if bags:
        offsets = encoded.bag_offsets[::bags] * BYTES_AN_ID
        _weave(_fixed(offsets), _fixed(encoded.bag_ids.view(np.uint8)), at, data)
    return Rows(encoded.ids, encoded.numbers, lengths, starts, data)


def _fixed(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    # one type of argument, so that the kernel is compiled once
    fixed = np.ascontiguousarray(array)
    fixed.flags.writeable = False
    return fixed


@njit(cache=True, nogil=True)
def _weave(offsets, source, at, data):  # type: ignore[no-untyped-def]
    for i in range(at.shape[0]):
        size = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        start = np.int64(offsets[i])
        for k in range(size):
            data[at[i] + k] = source[start + k]
        at[i] += size
