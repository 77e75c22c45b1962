"""One message of a relay: the present rows of a bucket that changed between two log positions.

A log entry contains what a push added. A block contains what rows are, so a row that ten entries
changed is in a block once. A block names the position that it starts from and the position that it
reaches, each as version and nonce. So blocks form a chain, like the entries of a log.

A block has one section for each kind of row (`relay_section`).

Format 1 has one section, with all counters, and rows as the logs have them. A relay writes it
unless final weights are asked for, so a server of an earlier version can read it. Format 2 has
several sections, and rows with final weights. An earlier version refuses it: "expected format 1".
*Refused:* half precision of rows as they are. FTRL computes its weight from two sums, which
overflow in 16 bits.

Layout, little-endian: u32 length of the header; the header as MessagePack, padded with spaces to a
multiple of eight; then the sections.
"""

import struct
from itertools import accumulate
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.relay.relay_section import (
    COUNTERS,
    BlockSection,
    RelayedColumns,
    RelayForm,
    joined,
    pack_gone,
    pack_section,
    section_bytes,
    unpack_section,
)
from headrace.pserver.rows.deltas import SourceReached
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.runtime.undecodable import UNDECODABLE

_PLAIN, _SECTIONS = 1, 2
"""The formats."""


class RelayPosition(NamedTuple):
    """A place in the log of a bucket."""

    version: int
    nonce: bytes


class BlockHeader(msgspec.Struct, frozen=True):
    """The header of a block."""

    fingerprint: str
    """The fingerprint of the model spec, as in Shape."""
    bucket: int
    width: Annotated[int, Meta(ge=0)]
    """Floats of a row in the model."""
    rows: Annotated[int, Meta(ge=0)]
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
    format: int = _PLAIN
    sections: list[BlockSection] = []
    """Of format 2: `columns`, `half` and `wide` are theirs."""

    @property
    def final(self) -> bool:
        """Whether the rows have final weights, which a reader has to restore."""
        return self.format == _SECTIONS


_encode = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(BlockHeader)


def pack_block(header: BlockHeader, rows: FoldedRows, columns: RelayedColumns | RelayForm) -> bytes:
    """Return the bytes of a block. The header's row count, columns and precision are set here."""
    count = rows.ids.shape[0]
    if isinstance(columns, RelayedColumns):
        section, body = pack_section(rows, columns)
        header = msgspec.structs.replace(
            header, rows=count, columns=section.columns, half=section.half, wide=section.wide
        )
    else:
        there = rows.exist()
        packed = [pack_gone(rows.ids[~there])] if not there.all() else []
        rows = columns.final(rows.chosen(there))
        kinds = columns.kinds(rows.ids)
        for kind, kept in enumerate(columns.sections):
            if (kinds == kind).any():
                packed.append(pack_section(rows.chosen(kinds == kind), kept))
        sections, body = [each for each, _ in packed], b"".join(each for _, each in packed)
        header = msgspec.structs.replace(header, rows=count, format=_SECTIONS, sections=sections)
    head = _encode.encode(header)
    head += b" " * (-(len(head) + 4) % 8)
    return b"".join((struct.pack("<I", len(head)), head, body))


def block_header(blob: bytes) -> BlockHeader:
    """Return the header of a block.

    Raises CorruptEntry if the bytes are not a block in a format of this version.
    """
    try:
        (length,) = struct.unpack_from("<I", blob)
        header = _decode.decode(blob[4 : 4 + length].rstrip(b" "))
    except (struct.error, *UNDECODABLE) as error:
        raise CorruptEntry(
            f"relay block of {len(blob)} bytes has no readable header: {error}"
        ) from error
    if header.format not in (_PLAIN, _SECTIONS):
        raise CorruptEntry(
            f"relay block: expected format {_PLAIN} or {_SECTIONS}, got {header.format}: use the "
            "version of headrace that wrote it, or a newer one"
        )
    sections = _sections(header)
    expected = 4 + length + sum(section_bytes(each) for each in sections)
    columns = sorted({column for each in sections for column in each.columns})
    known = all(set(each.counters) <= set(COUNTERS) for each in sections)
    fits = all(0 <= column < header.width for column in columns)
    if not (len(blob) == expected and fits and known):
        raise CorruptEntry(
            f"relay block: expected {expected} bytes and columns below {header.width}, got "
            f"{len(blob)} bytes and {columns}"
        )
    return header


def block_rows(blob: bytes, header: BlockHeader) -> FoldedRows:
    """Return the rows of a block; floats that were left out are zeros.

    The rows may need more memory than the block: compare the header's width with the model's first.
    """
    sections, (length,) = _sections(header), struct.unpack_from("<I", blob)
    ends = [*accumulate((section_bytes(each) for each in sections), initial=4 + length)]
    parts = [
        unpack_section(each, header.width, blob, at)
        for each, at in zip(sections, ends, strict=False)
    ]
    return joined(parts)


def _sections(header: BlockHeader) -> list[BlockSection]:
    """Return the sections of a block, at least one."""
    if header.format == _SECTIONS and header.sections:
        return header.sections
    counters, columns = list(COUNTERS), header.columns
    return [BlockSection(header.rows, columns, counters, half=header.half, wide=header.wide)]
