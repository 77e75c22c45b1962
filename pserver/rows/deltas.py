"""Row deltas: the content of one log entry, and its bytes.

A learner never writes a row. It pushes the deltas of rows since its last push: counts of shows and
clicks, the first and last time a row was seen, and float additions. Additions of several learners
commute, so nothing is lost when they interleave. An entry also carries how far its sources were
read, so a replica that folds it has its offsets.

A keeper may append deletions: ids of rows, each with the last time the keeper saw it (`Deletions`).
A row seen later stays. Such an entry has a format of its own. Programs that only support deltas
therefore refuse it by name, and do not add it.

Layout, little-endian: u32 length of the header; the header as MessagePack, padded with spaces to a
multiple of eight; then columns one after another: ids u64[n], shows u32[n], clicks u32[n],
first_seen u32[n], last_seen u32[n], values f32[n, width]; for deletions ids u64[n], last_seen
u32[n]. Columns and not rows, because every reader and writer of entries is vectorized.
"""

from __future__ import annotations

import struct
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from headrace.pserver.errors import CorruptEntry
from headrace.runtime.undecodable import UNDECODABLE

FORMAT = 1
DELETING_FORMAT = 2
"""Format of entries that delete rows."""
NEVER = 0xFFFFFFFF
"""`first_seen` of a row that was never seen: the identity of `min`."""


class RowDeltas(NamedTuple):
    """The deltas of rows. Ids are unique and ascending, and of one bucket when pushed."""

    ids: npt.NDArray[np.uint64]  # (n,)
    shows: npt.NDArray[np.uint32]  # (n,) added
    clicks: npt.NDArray[np.uint32]  # (n,) added
    first_seen: npt.NDArray[np.uint32]  # (n,) event time in seconds; the least wins
    last_seen: npt.NDArray[np.uint32]  # (n,) event time in seconds; the greatest wins
    values: npt.NDArray[np.float32]  # (n, width) added

    def chosen(self, which: slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> RowDeltas:
        """Return the rows of a slice, of a mask of shape (n,), or at these indexes."""
        return RowDeltas(
            self.ids[which],
            self.shows[which],
            self.clicks[which],
            self.first_seen[which],
            self.last_seen[which],
            self.values[which],
        )

    @classmethod
    def empty(cls, width: int) -> RowDeltas:
        """No rows: the content of an entry when only the bucket's marks advance."""
        none = np.zeros(0, np.uint32)
        return cls(np.zeros(0, np.uint64), none, none, none, none, np.zeros((0, width), np.float32))


class Deletions(NamedTuple):
    """Rows to delete, unless they were seen after the given time. Ids are unique and ascending."""

    ids: npt.NDArray[np.uint64]  # (n,)
    last_seen: npt.NDArray[np.uint32]  # (n,) event time in seconds

    def chosen(self, which: slice | npt.NDArray[np.bool_]) -> Deletions:
        """Return the rows of a slice, or those where a mask of shape (n,) is set."""
        return Deletions(self.ids[which], self.last_seen[which])


class SourceReached(msgspec.Struct, frozen=True, array_like=True):
    """The position of one source when an entry was pushed."""

    source: str
    """`topic id/partition`: a recreated topic of the same name is another source."""
    start: int
    """First offset that the entry covers."""
    stop: int
    """First offset that the entry does not cover."""
    append_ms: int
    """Greatest Kafka append time among the events behind offsets below `stop`."""
    clicks: list[tuple[int, int]] = []
    """(offset, append_ms) of the covered click examples, in one bucket's entry of a round only. A
    click has arrived at a replica once every bucket's `stop` for this source is past its offset."""


class EntryHeader(msgspec.Struct, frozen=True):
    """The header of an entry."""

    width: Annotated[int, Meta(ge=0)]
    """Floats of a row."""
    rows: Annotated[int, Meta(ge=0)]
    event_ms: int
    """Greatest event time that the pushing learner has learned from; 0 if unknown."""
    append_ms: int
    """Greatest append time of the events that the learner has learned from; 0 if unknown."""
    reached: list[SourceReached]
    format: int = FORMAT


_encode = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(EntryHeader)


def pack(header: EntryHeader, content: RowDeltas | Deletions) -> bytes:
    """Return the bytes of an entry.

    Raises ValueError if `header` does not describe `content`.
    """
    rows = content.ids.shape[0]
    columns: list[tuple[npt.NDArray[np.generic], str]]
    if isinstance(content, Deletions):
        fits = (header.format, header.rows, header.width) == (DELETING_FORMAT, rows, 0)
        columns = [(content.ids, "<u8"), (content.last_seen, "<u4")]
    else:
        width = content.values.shape[1]
        fits = (header.format, header.rows, header.width) == (FORMAT, rows, width)
        columns = [
            (content.ids, "<u8"),
            (content.shows, "<u4"),
            (content.clicks, "<u4"),
            (content.first_seen, "<u4"),
            (content.last_seen, "<u4"),
            (content.values, "<f4"),
        ]
    if not fits:
        raise ValueError(
            f"header: expected {rows} {type(content).__name__}, got {header.rows} rows of "
            f"{header.width} floats in format {header.format}"
        )
    head = _encode.encode(header)
    head += b" " * (-(len(head) + 4) % 8)
    body = (np.ascontiguousarray(column, kind).data for column, kind in columns)
    return b"".join((struct.pack("<I", len(head)), head, *body))


def unpack_entry(blob: bytes) -> tuple[EntryHeader, RowDeltas | Deletions]:
    """Return the arguments of `pack`; the arrays are read-only views of `blob`.

    Raises CorruptEntry if the bytes are not an entry in a format of this version.
    """
    try:
        (length,) = struct.unpack_from("<I", blob)
        header = _decode.decode(blob[4 : 4 + length].rstrip(b" "))
    except (struct.error, *UNDECODABLE) as error:
        raise CorruptEntry(
            f"log entry of {len(blob)} bytes has no readable header: {error}"
        ) from error
    rows, start = header.rows, 4 + length
    deleting = header.format == DELETING_FORMAT
    expected = start + rows * (12 if deleting else 24 + 4 * header.width)
    if header.format not in (FORMAT, DELETING_FORMAT):
        raise CorruptEntry(
            f"log entry: expected format {FORMAT} or {DELETING_FORMAT}, got {header.format}: use "
            "the version of headrace that wrote it, or a newer one"
        )
    if len(blob) != expected:
        raise CorruptEntry(
            f"log entry: expected {expected} bytes for {rows} rows of {header.width} floats, "
            f"got {len(blob)}"
        )
    ids = np.frombuffer(blob, "<u8", rows, start)
    if deleting:
        return header, Deletions(ids, np.frombuffer(blob, "<u4", rows, start + 8 * rows))
    words = np.frombuffer(blob, "<u4", 4 * rows, start + 8 * rows).reshape(4, rows)
    values = np.frombuffer(blob, "<f4", rows * header.width, start + 24 * rows)
    deltas = RowDeltas(
        ids, words[0], words[1], words[2], words[3], values.reshape(rows, header.width)
    )
    return header, deltas
