"""Rows of a relay's block that have the same columns, as bytes.

The forward pass needs only some of a row. `RelayedColumns` names the floats and counters that are
relayed: the others, such as the optimizer's sums, are left out. A reader has zeros for the floats,
and one show for the counters, so that the row exists. A block has one section for each kind of row,
and one for ids whose row is gone.

With `half`, the values have 16 bits. A section with a value that 16 bits cannot hold has 32 bits
for all its values. Rounding changes a value by at most 2^-11 of it, or by 2^-25 below 2^-14.

Layout, little-endian, one column after another: ids u64[n]; those of shows and clicks (u32[n] or
u64[n]), first_seen and last_seen (u32[n]) that are kept; values f16 or f32[n, columns]. Ids of rows
that are gone have no other columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from headrace.pserver.rows.deltas import NEVER
from headrace.pserver.rows.row_codec import FoldedRows

COUNTERS = ("shows", "clicks", "first_seen", "last_seen")
LARGEST_HALF = float(np.finfo(np.float16).max)
_LARGEST_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class RelayedColumns:
    """The floats and counters of rows that are relayed, and the precision of the floats."""

    kept: tuple[int, ...]
    """Indexes of the floats, ascending."""
    half: bool = False
    """Whether 16 bits are enough for each of them."""
    counters: tuple[str, ...] = COUNTERS
    """Names of the counters, in the order of COUNTERS."""

    @classmethod
    def all(cls, width: int) -> RelayedColumns:
        """Return all floats in full precision: readers then have exactly the rows of the logs."""
        return cls(tuple(range(width)))


@dataclass(frozen=True, slots=True)
class RelayForm:
    """The columns of each kind of row, and the floats in the form that readers need."""

    sections: tuple[RelayedColumns, ...]
    """By kind of row."""
    kinds: Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.intp]]
    """Returns the kind of the row of each id."""
    final: Callable[[FoldedRows], FoldedRows]
    """Returns rows with final weights. A reader reverses it (`RelayedReplica.restored`)."""


class BlockSection(msgspec.Struct, frozen=True):
    """The header of a section."""

    rows: Annotated[int, Meta(ge=0)]
    columns: list[int]
    counters: list[str]
    half: bool = False
    wide: bool = False
    """Whether shows and clicks have 64 bits."""
    gone: bool = False
    """Whether these rows do not exist any more."""


def pack_section(rows: FoldedRows, columns: RelayedColumns) -> tuple[BlockSection, bytes]:
    """Return header and bytes of these rows."""
    values = rows.values[:, list(columns.kept)]
    half = columns.half and bool((np.abs(values) <= LARGEST_HALF).all())
    most = max(int(rows.shows.max(initial=0)), int(rows.clicks.max(initial=0)))
    wide = most > _LARGEST_WORD and bool({"shows", "clicks"} & set(columns.counters))
    section = BlockSection(
        rows.ids.shape[0], list(columns.kept), list(columns.counters), half=half, wide=wide
    )
    parts = [rows.ids.astype("<u8")]
    parts += [getattr(rows, name).astype(_kind(name, section)) for name in columns.counters]
    parts.append(values.astype("<f2" if half else "<f4"))
    return section, b"".join(np.ascontiguousarray(each).tobytes() for each in parts)


def pack_gone(ids: npt.NDArray[np.uint64]) -> tuple[BlockSection, bytes]:
    """Return header and bytes of rows that do not exist any more."""
    return BlockSection(ids.shape[0], [], [], gone=True), ids.astype("<u8").tobytes()


def section_bytes(section: BlockSection) -> int:
    """Return how many bytes a section has."""
    counters = sum(8 if _kind(name, section) == "<u8" else 4 for name in section.counters)
    return section.rows * (8 + counters + (2 if section.half else 4) * len(section.columns))


def unpack_section(section: BlockSection, width: int, blob: bytes, at: int) -> FoldedRows:
    """Return the rows of a section at this byte; the caller has checked its header and length."""
    count, kept = section.rows, len(section.columns)

    def column(kind: str, items: int = count) -> npt.NDArray[np.generic]:
        nonlocal at
        found = np.frombuffer(blob, kind, items, at)
        at += found.nbytes
        return found

    ids = column("<u8").astype(np.uint64)
    rows = FoldedRows(
        ids,
        np.full(count, 0 if section.gone else 1, np.uint64),
        np.zeros(count, np.uint64),
        np.full(count, NEVER, np.uint32),
        np.zeros(count, np.uint32),
        np.zeros((count, width), np.float32),
    )
    for name in section.counters:
        getattr(rows, name)[:] = column(_kind(name, section))
    found = column("<f2" if section.half else "<f4", count * kept).reshape(count, kept)
    rows.values[:, section.columns] = found
    return rows


def joined(parts: list[FoldedRows]) -> FoldedRows:
    """Return all rows of one or more sections."""
    if len(parts) == 1:
        return parts[0]
    return FoldedRows._make(np.concatenate(each) for each in zip(*parts, strict=True))


def _kind(name: str, section: BlockSection) -> str:
    return "<u8" if section.wide and name in {"shows", "clicks"} else "<u4"
