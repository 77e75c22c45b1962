"""Folded rows as the store keeps them: one packed blob a row, encoded and decoded in bulk.

A learner pushes the *deltas* of rows (pserver.rows.deltas); a keeper writes their *sums*. Both have
the same columns, but the counters of sums need 64 bits. Every stored row also holds the version of
its bucket's log up to which it is folded, so a reader of rows and log adds only newer entries.

Layout, little-endian: version u64, shows u64, clicks u64, first_seen u32, last_seen u32, values
f32[width]. The key of a row is its id, u64 little-endian, in a sub-hash: a small hash, which
servers keep as one flat piece of memory. That halves the overhead of a row. The bits of the id
below those of its bucket choose the sub-hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.rows.deltas import NEVER

_SUB_HASHES = 16_384  # of a model with few buckets: 60 rows each, if a bucket has a million rows
MOST_SUB_HASHES = 4096
"""Of a bucket. Their keys are arguments of one call."""


class FoldedRows(NamedTuple):
    """Rows, each with the sum of its deltas."""

    ids: npt.NDArray[np.uint64]  # (n,)
    shows: npt.NDArray[np.uint64]  # (n,)
    clicks: npt.NDArray[np.uint64]  # (n,)
    first_seen: npt.NDArray[np.uint32]  # (n,) event time in seconds, deltas.NEVER if never
    last_seen: npt.NDArray[np.uint32]  # (n,) event time in seconds
    values: npt.NDArray[np.float32]  # (n, width)

    def chosen(self, which: slice | npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> FoldedRows:
        """Return the rows of a slice, of a mask of shape (n,), or at these indexes."""
        return FoldedRows._make(column[which] for column in self)

    def exist(self) -> npt.NDArray[np.bool_]:
        """Return which rows ever had a delta; shape (n,). All others equal absent rows."""
        gained = (self.shows > 0) | (self.clicks > 0) | (self.last_seen > 0)
        gained |= (self.first_seen != NEVER) | (self.values != 0).any(axis=1)
        return gained

    def existing(self) -> FoldedRows:
        """Return the rows that exist, in ascending order of id, as copies."""
        there = np.flatnonzero(self.exist())
        return self.chosen(there[np.argsort(self.ids[there])])

    def checksum(self) -> str:
        """Return a digest of the rows that exist, independent of their order."""
        digest = hashlib.blake2b(digest_size=16)
        for column in self.existing():
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()


class StoredRows(NamedTuple):
    """Folded rows from the store, with the version up to which each is folded."""

    versions: npt.NDArray[np.uint64]  # (n,)
    rows: FoldedRows
    trimmed: int = 0
    """From `Store.rows`: the trimmed version of the log when these rows were read, or right after.
    """


def row_bytes(width: int) -> int:
    """Return the bytes of a row's blob, without its id."""
    return 32 + 4 * width


def pack_rows(version: int, rows: FoldedRows) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
    """Return id and blob of each row, folded up to `version`; items of raw bytes, (n,)."""
    count, width = rows.values.shape
    packed = np.zeros(count, _layout(width))
    packed["version"] = version
    packed["shows"] = rows.shows
    packed["clicks"] = rows.clicks
    packed["first_seen"] = rows.first_seen
    packed["last_seen"] = rows.last_seen
    packed["values"] = rows.values
    ids = np.ascontiguousarray(rows.ids, "<u8")
    return ids.view("V8"), packed.view(f"V{row_bytes(width)}")


def unpack_rows(ids: Sequence[bytes], blobs: Sequence[bytes], width: int) -> StoredRows:
    """Return the arguments of `pack_rows`; the arrays are read-only views.

    Raises CorruptEntry if the bytes are not rows of `width` floats.
    """
    names, joined = b"".join(ids), b"".join(blobs)
    size = row_bytes(width)
    if len(names) != 8 * len(ids) or len(joined) != size * len(ids):
        raise CorruptEntry(
            f"expected {len(ids)} rows of {width} floats, {8 + size} bytes each with its id, "
            f"got {len(names) + len(joined)} bytes"
        )
    packed = np.frombuffer(joined, _layout(width))
    return StoredRows(
        packed["version"],
        FoldedRows(
            np.frombuffer(names, "<u8"),
            packed["shows"],
            packed["clicks"],
            packed["first_seen"],
            packed["last_seen"],
            packed["values"],
        ),
    )


def sub_hash_of(
    ids: npt.NDArray[np.uint64], buckets: int, sub_hashes: int
) -> npt.NDArray[np.int64]:
    """Return the sub-hash of each id within its bucket; both counts are powers of two."""
    below = 64 - (buckets.bit_length() - 1) - (sub_hashes.bit_length() - 1)
    if below == 64:
        return np.zeros(ids.shape[0], np.int64)
    return ((ids >> np.uint64(below)) & np.uint64(sub_hashes - 1)).astype(np.int64)


def sub_hashes_for(buckets: int, had: int = 0) -> int:
    """Return the default number of sub-hashes of a bucket; a power of two.

    16,384 are shared by the buckets, or as many as a model `had` in all, but each bucket has 256 to
    4,096.
    """
    each = max(had, _SUB_HASHES) // buckets
    return min(MOST_SUB_HASHES, max(256, 1 << each.bit_length() >> 1))


def _layout(width: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("version", "<u8"),
            ("shows", "<u8"),
            ("clicks", "<u8"),
            ("first_seen", "<u4"),
            ("last_seen", "<u4"),
            ("values", "<f4", (width,)),
        ]
    )
