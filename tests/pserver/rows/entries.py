"""Row deltas and pushes for tests."""

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.pserver.rows.deltas import (
    NEVER,
    EntryHeader,
    RowDeltas,
    SourceReached,
    pack,
    unpack_entry,
)
from headrace.pserver.store import OffsetSpan, Push

WIDTH = 2
SOURCE = "topic/0"


def row_ids(bucket: int, buckets: int, numbers: Sequence[int]) -> npt.NDArray[np.uint64]:
    """Ids of a bucket: in different sub-hashes, and parts of the bucket if it is split."""
    log = np.uint64(buckets.bit_length() - 1)
    ids = np.array(numbers, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ids >> log | np.uint64(bucket) << np.uint64(64) - log if log else ids


def deltas_of(bucket: int, buckets: int, dice: random.Random, rows: int = 4) -> RowDeltas:
    """Random deltas of up to `rows` of the bucket's nine rows."""
    ids = row_ids(bucket, buckets, sorted({dice.randrange(9) for _ in range(rows)}))
    count = ids.shape[0]

    def some(limit: int) -> list[int]:
        return [dice.randrange(limit) for _ in range(count)]

    return RowDeltas(
        ids,
        np.array(some(5), np.uint32),
        np.array(some(3), np.uint32),
        np.array([dice.choice([NEVER, 50, 60, 70]) for _ in range(count)], np.uint32),
        np.array(some(100), np.uint32),
        np.array(
            [[dice.gauss(0, 1) for _ in range(WIDTH)] for _ in range(count)], np.float32
        ).reshape(count, WIDTH),
    )


def blob_of(deltas: RowDeltas, start: int = 0, stop: int = 0, source: str = SOURCE) -> bytes:
    """An entry with these deltas, which covers these offsets."""
    rows, width = deltas.values.shape
    return pack(
        EntryHeader(width, rows, stop, stop, [SourceReached(source, start, stop, stop)]), deltas
    )


def unpacked(blob: bytes) -> tuple[EntryHeader, RowDeltas]:
    """Return header and deltas of an entry."""
    header, deltas = unpack_entry(blob)
    assert isinstance(deltas, RowDeltas)
    return header, deltas


class Pusher:
    """Pushes to one bucket as a learner does, with its offsets in order."""

    def __init__(self, bucket: int, buckets: int, seed: int = 0) -> None:
        self.bucket, self.buckets = bucket, buckets
        self.dice = random.Random(f"{seed}/{bucket}")
        self.offset = 0

    def next(self, rows: int = 4) -> Push:
        """The next push, as if the previous one had been applied."""
        deltas = deltas_of(self.bucket, self.buckets, self.dice, rows)
        start, stop = self.offset, self.offset + self.dice.randint(1, 5)
        self.offset = stop
        return Push(
            self.bucket,
            (OffsetSpan(SOURCE, start, stop),),
            self.dice.randbytes(8),
            blob_of(deltas, start, stop),
        )
