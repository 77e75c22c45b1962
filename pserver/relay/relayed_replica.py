"""A replica that reads the blocks of a relay in place of the logs.

Per bucket, it waits for a base, puts its rows, and then applies the blocks that continue its
position. A block that does not continue it is a gap: the rows stay as they are, and the next base
mends the bucket. Blocks at or before the position were read twice, and change nothing.

The law: at every position, the relayed floats and all counters equal those of a `Replica` at the
same version and nonce. They are equal bit for bit in full precision, and rounded to 16 bits in half
precision. Rounding does not accumulate, because a block contains rows and not additions. Blocks of
final weights are restored to rows with the same weights. They can follow and precede blocks of rows
as they are.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace.pserver.errors import StoreError
from headrace.pserver.relay.relay_block import BlockHeader, RelayPosition, block_header, block_rows
from headrace.pserver.replica.log_chain import LogPosition
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.rows.table import Places, RowTable
from headrace.pserver.store import Shape


class Relayed(NamedTuple):
    """A block, or the last block of a base, was applied to the rows of a bucket."""

    bucket: int
    header: BlockHeader
    size_bytes: int


class Gap(NamedTuple):
    """A block does not continue the bucket's position; the bucket waits for its next base."""

    bucket: int
    expected: RelayPosition
    got: RelayPosition


class RelayedReplica:
    """All relayed rows of a model. Not safe for several threads; others may read the table."""

    def __init__(
        self,
        shape: Shape,
        table: RowTable | None = None,
        restored: Callable[[FoldedRows], FoldedRows] | None = None,
    ) -> None:
        """restored: returns rows whose weights are the final weights given."""
        self.shape, self._restored = shape, restored
        self.table = RowTable(shape.width) if table is None else table
        self._positions: dict[int, LogPosition] = {}
        self._bases: dict[int, list[FoldedRows]] = {}  # parts of a base that has not ended

    @property
    def complete(self) -> bool:
        """Whether every bucket has had a base."""
        return len(self._positions) == self.shape.buckets

    @property
    def buckets(self) -> list[int]:
        """All buckets of the model."""
        return list(range(self.shape.buckets))

    def copied(self, bucket: int) -> bool:
        """Whether the bucket has had a base."""
        return bucket in self._positions

    def position(self, bucket: int) -> LogPosition:
        """Return the log position that the bucket's rows have. Raises KeyError before a base."""
        return self._positions[bucket]

    def compact(self) -> object:
        """Free the memory of removed rows, if there are many."""
        return self.table.compact() if self.table.sparse else None

    def places(self, bucket: int) -> Places:
        """Return the places in the table of all rows of a bucket."""
        return np.flatnonzero(self.shape.bucket_of(self.table.ids) == bucket)

    def checksum(self, bucket: int) -> str:
        """Return a digest of the bucket's rows, as Replica.checksum does."""
        return self.table.take(self.places(bucket)).checksum()

    def take(self, blob: bytes) -> Relayed | Gap | None:
        """Apply a block; None: it changed nothing.

        Raises CorruptEntry, and StoreError if the block is of another model.
        """
        header = block_header(blob)
        self._check_model(header)
        rows = block_rows(blob, header)
        if header.final:
            if self._restored is None:
                raise StoreError("relay block: expected rows as they are, got final weights")
            rows = self._restored(rows)
        bucket = self._checked_bucket(header, rows)
        if header.start is None:
            return self._take_base(header, rows, len(blob))
        self._bases.pop(bucket, None)
        position = self._positions.get(bucket)
        if position is None:
            return None
        at = RelayPosition(position.version, position.nonce)
        if header.start != at:
            older = header.stop.version <= at.version  # a rewritten history begins with a base
            return None if older else Gap(bucket, at, header.start)
        self._put(rows)
        self._move(header, position)
        return Relayed(bucket, header, len(blob))

    def _check_model(self, header: BlockHeader) -> None:
        expected = self.shape.fingerprint, self.shape.width
        if (header.fingerprint, header.width) != expected:
            raise StoreError(
                f"relay block: expected fingerprint and width {expected}, got "
                f"{header.fingerprint!r} and {header.width}"
            )

    def _checked_bucket(self, header: BlockHeader, rows: FoldedRows) -> int:
        shape = self.shape
        if (
            not 0 <= header.bucket < shape.buckets
            or (shape.bucket_of(rows.ids) != header.bucket).any()
        ):
            raise StoreError(f"relay block: got rows of other buckets than {header.bucket}")
        return header.bucket

    def _take_base(self, header: BlockHeader, rows: FoldedRows, size_bytes: int) -> Relayed | None:
        bucket = header.bucket
        if not header.part:
            self._bases[bucket] = []
        parts = self._bases.get(bucket)
        if parts is None or len(parts) != header.part:
            self._bases.pop(bucket, None)  # read from the middle: the next base is complete
            return None
        parts.append(rows)
        if not header.last:
            return None
        del self._bases[bucket]
        old = self.places(bucket)
        whole = FoldedRows._make(np.concatenate(each) for each in zip(*parts, strict=True))
        self.table.clear(old[~np.isin(self.table.ids[old], whole.ids)])
        self._put(whole)
        self._move(header, None)
        return Relayed(bucket, header, size_bytes)

    def _put(self, rows: FoldedRows) -> None:
        there = rows.exist()
        self.table.put(rows.chosen(there))
        gone = self.table.find(rows.ids[~there])
        self.table.clear(gone[gone >= 0])

    def _move(self, header: BlockHeader, before: LogPosition | None) -> None:
        reached = {} if before is None else dict(before.reached)
        reached |= {each.source: each for each in header.reached}
        self._positions[header.bucket] = LogPosition(
            *header.stop, header.event_ms, header.append_ms, reached
        )
