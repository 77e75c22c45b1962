"""One message of a relay: the present rows of a bucket that changed between two log positions.

A log entry contains what a push added. A block contains what rows are, so a row that ten entries
changed is in a block once. A block names the position that it starts from and the position that it
reaches, each as version and nonce. So blocks form a chain, like the entries of a log.

The forward pass needs only some floats of a row. `RelayedColumns` names them: the others, such as
the optimizer's sums, are left out, and a reader has zeros for them. With `half`, the values have 16
bits. A block with a value that 16 bits cannot hold has 32 bits for all its values. *Refused:* half
precision by default. FTRL computes its weight from two sums, which overflow in 16 bits.

Layout, little-endian: u32 length of the header; the header as MessagePack, padded with spaces to a
multiple of eight; then columns one after another: ids u64[n], shows and clicks u32[n] or u64[n],
first_seen u32[n], last_seen u32[n], values f16 or f32[n, columns].
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.rows import FoldedRows, SourceReached

if TYPE_CHECKING:
    import numpy.typing as npt

FORMAT = 1
_LARGEST_HALF = float(np.finfo(np.float16).max)
_LARGEST_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class RelayedColumns:
    """The floats of a row that are relayed, and their precision."""

    kept: tuple[int, ...]
    """Indexes of the floats, ascending."""
    half: bool = False
    """Whether 16 bits are enough for each of them."""

    @classmethod
    def all(cls, width: int) -> RelayedColumns:
        """Return all floats in full precision: readers then have exactly the rows of the logs."""
        return cls(tuple(range(width)))


class RelayPosition(NamedTuple):
    """A place in the log of a bucket."""

    version: int
    nonce: bytes


class BlockHeader(msgspec.Struct, frozen=True):
    """The header of a block."""

    fingerprint: str
    """The fingerprint of the model spec, as in Shape."""
    bucket: int
    width: int
    """Floats of a row in the model."""
    rows: int
    start: RelayPosition | None
    """The position that the rows change from; None: of a base, which needs no earlier block."""
    stop: RelayPosition
    event_ms: int
    append_ms: int
    """Greatest event and append time behind the rows, as in LogPosition."""
    reached: list[SourceReached]
    columns: list[int]
    half: bool = False
    wide: bool = False
    """Whether counters have 64 bits."""
    part: int = 0
    """Number of this block among those of a base."""
    last: bool = True
    """Whether a base ends with this block."""
    format: int = FORMAT


_encode = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(BlockHeader)


def pack_block(header: BlockHeader, rows: FoldedRows, columns: RelayedColumns) -> bytes:
    """Return the bytes of a block. Row count, columns and precision of the header are set here."""
    values = rows.values[:, list(columns.kept)]
    half = columns.half and bool((np.abs(values) <= _LARGEST_HALF).all())
    most = max(int(rows.shows.max(initial=0)), int(rows.clicks.max(initial=0)))
    wide = most > _LARGEST_WORD
    header = msgspec.structs.replace(
        header, rows=rows.ids.shape[0], columns=list(columns.kept), half=half, wide=wide
    )
    head = _encode.encode(header)
    head += b" " * (-(len(head) + 4) % 8)
    counter = "<u8" if wide else "<u4"
    body: list[tuple[npt.NDArray[np.generic], str]] = [
        (rows.ids, "<u8"),
        (rows.shows, counter),
        (rows.clicks, counter),
        (rows.first_seen, "<u4"),
        (rows.last_seen, "<u4"),
        (values, "<f2" if half else "<f4"),
    ]
    parts = (np.ascontiguousarray(column.astype(kind)).tobytes() for column, kind in body)
    return b"".join((struct.pack("<I", len(head)), head, *parts))


def unpack_block(blob: bytes) -> tuple[BlockHeader, FoldedRows]:
    """Return header and rows of a block; floats that were left out are zeros.

    Raises CorruptEntry if the bytes are not a block in the format of this version.
    """
    try:
        (length,) = struct.unpack_from("<I", blob)
        header = _decode.decode(blob[4 : 4 + length].rstrip(b" "))
    except (struct.error, msgspec.DecodeError) as error:
        raise CorruptEntry(
            f"relay block of {len(blob)} bytes has no readable header: {error}"
        ) from error
    rows, kept = header.rows, len(header.columns)
    counter, value = (8 if header.wide else 4), (2 if header.half else 4)
    expected = 4 + length + rows * (16 + 2 * counter + value * kept)
    fits = all(0 <= each < header.width for each in header.columns)
    if header.format != FORMAT or len(blob) != expected or not fits:
        raise CorruptEntry(
            f"relay block: expected format {FORMAT}, {expected} bytes and columns below "
            f"{header.width}, got format {header.format}, {len(blob)} bytes and {header.columns}"
        )
    at = 4 + length

    def column(kind: str, count: int = rows) -> npt.NDArray[np.generic]:
        nonlocal at
        found = np.frombuffer(blob, kind, count, at)
        at += found.nbytes
        return found

    words = "<u8" if header.wide else "<u4"
    ids = column("<u8").astype(np.uint64)
    shows, clicks = (column(words).astype(np.uint64) for _ in range(2))
    first, last = (column("<u4").astype(np.uint32) for _ in range(2))
    values = np.zeros((rows, header.width), np.float32)
    found = column("<f2" if header.half else "<f4", rows * kept).reshape(rows, kept)
    values[:, header.columns] = found
    return header, FoldedRows(ids, shows, clicks, first, last, values)
