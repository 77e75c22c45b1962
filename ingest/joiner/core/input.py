"""Messages of one partition in columns: the input of the joiner core.

A chunk is a run of consecutive messages of one source, decoded, with the fields of impressions
already encoded. The strings that an example also needs (impression id, request id, the fields to
slice by) are not extracted here: the core copies them from the messages.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.ingest.decoding.decoder import Decoded, Decoder
from headrace.ingest.decoding.json_scanner import TICK
from headrace.ingest.events.contract import IMPRESSION_ID, LARGEST_EXAMPLE_BYTES, REQUEST_ID, Reason
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.example_weights import weights_of
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.core.byte_arena import ID_BYTES, LONGEST_LENGTH_BYTES
from headrace.ingest.kafka.protocols import MessageBlock
from headrace.runtime.kernels.numba_kernels import read_only


class EventSide(IntEnum):
    """One of the two topics."""

    IMPRESSIONS = 0
    CLICKS = 1


class EventRole(IntEnum):
    """The kind of a message, once decoded."""

    EVENT = 0
    TICK = 1
    REFUSED = 2


class EventColumns(NamedTuple):
    """The part of each event that examples need, in columns that a compiled kernel copies from."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    numbers: npt.NDArray[np.float32]  # (n, numbers), and one more column for a declared weight
    begins: npt.NDArray[np.int64]  # (n, strings) in `data`
    lengths: npt.NDArray[np.int32]  # (n, strings) bytes, -1 for null
    data: npt.NDArray[np.uint8]
    bag_offsets: npt.NDArray[np.int32]  # (n * bags + 1,)
    bag_bytes: npt.NDArray[np.uint8]  # the ids of the bags
    most_bytes: npt.NDArray[np.int64]  # (n + 1,) cumulative: strings and bags in the arena


class EventBuffers(NamedTuple):
    """The columns of a chunk that every message has."""

    roles: npt.NDArray[np.uint8]  # (n,) EventRole
    event_ms: npt.NDArray[np.int64]  # (n,) timestamp of the producer; 0 if refused
    append_ms: npt.NDArray[np.int64]  # (n,)
    hashes: npt.NDArray[np.uint64]  # (n,) of the impression id


ColumnsT = TypeVar("ColumnsT", EventColumns, EventBuffers)


class EventChunk(NamedTuple):
    """Consecutive messages of one source."""

    side: EventSide
    stop: int
    """First offset not covered: past the last message."""
    offsets: npt.NDArray[np.int64]  # (n,)
    arrays: EventBuffers
    rows: EventColumns
    """Without columns for clicks: a click has the fields of its impression."""
    block: MessageBlock | None
    """The messages as read, quoted by dead letters; None in an empty chunk."""
    refused: dict[int, Reason]
    """Reason by place in the chunk."""

    def __len__(self) -> int:
        return int(self.offsets.shape[0])


class ChunkReader:
    """Decodes messages into chunks, for one model."""

    def __init__(
        self,
        fields: FieldSet,
        seen: Callable[[Decoded, npt.NDArray[np.bool_]], None] | None = None,
    ) -> None:
        """`seen`: called with each chunk of impressions, and which of them are events."""
        self._encoder, self._seen = Encoder(fields), seen
        self._decoders = {EventSide.IMPRESSIONS: Decoder(fields), EventSide.CLICKS: Decoder(None)}
        self._strings = (IMPRESSION_ID, REQUEST_ID, *fields.slice_by)
        self._weight = fields.weights.source

    def read(self, side: EventSide, block: MessageBlock) -> EventChunk:
        """Return a chunk of one or more messages of one source, in the order of their offsets."""
        decoded = self._decoders[side].decode(block.values, block.append_ms)
        roles = np.where(
            decoded.found.states == TICK, np.uint8(EventRole.TICK), np.uint8(EventRole.EVENT)
        )
        rows, refused = no_rows(), decoded.refused
        if side is EventSide.IMPRESSIONS:
            rows = self._rows(decoded)
            large = np.flatnonzero(np.diff(rows.most_bytes) > LARGEST_EXAMPLE_BYTES)
            if large.shape[0]:
                refused = refused | dict.fromkeys(large.tolist(), Reason.TOO_LARGE)
            if self._weight:
                rows, bad = self._weighed(rows, decoded)
                refused = bad | refused
        roles[list(refused)] = EventRole.REFUSED
        if self._seen is not None and side is EventSide.IMPRESSIONS:
            self._seen(decoded, roles == EventRole.EVENT)
        return EventChunk(
            side,
            int(block.offsets[-1]) + 1,
            block.offsets,
            only_read(
                EventBuffers(
                    roles, decoded.found.times, block.append_ms, decoded.hashes(IMPRESSION_ID)
                )
            ),
            only_read(rows),
            block,
            refused,
        )

    def _weighed(
        self, rows: EventColumns, decoded: Decoded
    ) -> tuple[EventColumns, dict[int, Reason]]:
        """Append the weights to the numbers; return the events with an invalid weight."""
        absent = decoded.absent(self._weight)
        weights, bad = weights_of(absent, decoded.reals(self._weight))
        refused = dict.fromkeys(np.flatnonzero(bad).tolist(), Reason.BAD_WEIGHT)
        numbers = np.column_stack((rows.numbers, weights))
        return rows._replace(numbers=numbers), refused

    def _rows(self, decoded: Decoded) -> EventColumns:
        count = len(decoded)
        encoded = self._encoder.encode_columns(count, decoded)
        begins, lengths = decoded.text_places(self._strings)
        bags = (encoded.bag_offsets.shape[0] - 1) // count
        sizes = np.maximum(lengths, 0).sum(axis=1, dtype=np.int64)
        if bags:
            sizes += np.diff(encoded.bag_offsets[::bags]) * ID_BYTES
        most_bytes = np.zeros(count + 1, np.int64)
        np.cumsum(sizes + LONGEST_LENGTH_BYTES * (lengths.shape[1] + bags), out=most_bytes[1:])
        bag_bytes = encoded.bag_ids.view(np.uint8)
        return EventColumns(
            *(encoded.ids, encoded.numbers, begins, lengths, decoded.data),
            *(encoded.bag_offsets, bag_bytes, most_bytes),
        )


def only_read(columns: ColumnsT) -> ColumnsT:
    """Return read-only arrays of the same content.

    Some decoded arrays are views of messages and thus read-only; which ones depends on the fields.
    numba compiles for each mix of read-only and writable arrays anew, ten seconds each time.
    """
    return type(columns)._make(read_only(column, column.dtype.type) for column in columns)


def no_rows() -> EventColumns:
    """Return rows without columns."""
    return only_read(
        EventColumns(
            np.zeros((0, 0), np.uint64),
            np.zeros((0, 0), np.float32),
            np.zeros((0, 0), np.int64),
            np.zeros((0, 0), np.int32),
            np.zeros(0, np.uint8),
            np.zeros(1, np.int32),
            np.zeros(0, np.uint8),
            np.zeros(1, np.int64),
        )
    )
