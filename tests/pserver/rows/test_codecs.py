"""Entries and rows survive encoding bit for bit, invalid bytes are refused; the row table."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pserver.errors import CorruptEntry
from headrace.pserver.rows.deltas import (
    DELETING_FORMAT,
    NEVER,
    Deletions,
    EntryHeader,
    RowDeltas,
    SourceReached,
    pack,
    unpack_entry,
)
from headrace.pserver.rows.row_codec import (
    MOST_SUB_HASHES,
    FoldedRows,
    pack_rows,
    row_bytes,
    sub_hash_of,
    sub_hashes_for,
    unpack_rows,
)
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import unpacked

WIDTHS = st.integers(0, 5)
SEEDS = st.integers(0, 2**32 - 1)


def some_rows(seed: int, count: int, width: int) -> FoldedRows:
    """Rows of random bits, NaN among the floats."""
    dice = np.random.default_rng(seed)

    def words(dtype: str, *shape: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(dice.bytes(size), dtype).reshape(shape)

    return FoldedRows(
        words("<u8", count),
        words("<u8", count),
        words("<u8", count),
        words("<u4", count),
        words("<u4", count),
        words("<f4", count, width),
    )


def same(left: tuple[np.ndarray, ...], right: tuple[np.ndarray, ...]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


@given(seed=SEEDS, count=st.integers(0, 9), width=WIDTHS, version=st.integers(0, 2**53))
def test_stored_rows_survive_encoding_bit_for_bit(
    seed: int, count: int, width: int, version: int
) -> None:
    rows = some_rows(seed, count, width)
    ids, blobs = pack_rows(version, rows)
    versions, found, _ = unpack_rows(ids.tolist(), blobs.tolist(), width)
    assert versions.tolist() == [version] * count
    assert same(found, rows)
    assert found.values.shape == (count, width)
    assert all(len(blob) == row_bytes(width) for blob in blobs.tolist())


def test_bytes_that_are_not_rows_of_the_model_width_are_refused() -> None:
    ids, blobs = pack_rows(1, some_rows(0, 3, 2))
    for bad_ids, bad_blobs, width in (
        (ids.tolist(), blobs.tolist(), 3),
        ([b"short"] * 3, blobs.tolist(), 2),
        (ids.tolist(), [*blobs.tolist()[:2], b""], 2),
    ):
        with pytest.raises(CorruptEntry, match="expected 3 rows"):
            unpack_rows(bad_ids, bad_blobs, width)


@given(seed=SEEDS, count=st.integers(0, 9))
def test_deletions_survive_encoding(seed: int, count: int) -> None:
    rows = some_rows(seed, count, 0)
    header = EntryHeader(0, count, 7, 8, [SourceReached("a/0", 1, 2, 3)], DELETING_FORMAT)
    blob = pack(header, Deletions(rows.ids, rows.last_seen))
    found_header, found = unpack_entry(blob)
    assert found_header == header
    assert isinstance(found, Deletions)
    assert same(found, (rows.ids, rows.last_seen))
    with pytest.raises(CorruptEntry, match="log entry: expected"):
        unpack_entry(blob + b"x")
    with pytest.raises(ValueError, match="Deletions"):
        pack(EntryHeader(0, count, 7, 8, []), Deletions(rows.ids, rows.last_seen))


@given(seed=SEEDS, count=st.integers(0, 9), width=WIDTHS, sources=st.lists(st.text(), max_size=3))
def test_a_log_entry_survives_encoding_bit_for_bit(
    seed: int, count: int, width: int, sources: list[str]
) -> None:
    rows = some_rows(seed, count, width)
    counts = rows.shows.astype(np.uint32), rows.clicks.astype(np.uint32)
    deltas = RowDeltas(rows.ids, *counts, rows.first_seen, rows.last_seen, rows.values)
    reached = [SourceReached(source, n, n + 1, 2**41, [(n, 5)]) for n, source in enumerate(sources)]
    header = EntryHeader(width, count, 2**41, 0, reached)
    blob = pack(header, deltas)
    found_header, found = unpacked(blob)
    assert found_header == header
    assert same(found, deltas)
    for wrong in (blob[:-1], blob + b"x", blob[:3], b""):
        with pytest.raises(CorruptEntry):
            unpack_entry(wrong)


def test_a_log_entry_whose_header_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match="got 1 rows of 2 floats"):
        pack(EntryHeader(2, 1, 0, 0, []), RowDeltas.empty(2))


@given(
    ids=st.lists(st.integers(0, 2**64 - 1), max_size=50),
    bits=st.tuples(st.integers(0, 8), st.integers(0, 8)),
)
def test_the_id_bits_below_those_of_the_bucket_choose_the_sub_hash(
    ids: list[int], bits: tuple[int, int]
) -> None:
    buckets, sub_hashes = 1 << bits[0], 1 << bits[1]
    array = np.array(ids, np.uint64)
    shape = Shape("m", buckets, 1, "", "")
    both = shape.bucket_of(array) * sub_hashes + sub_hash_of(array, buckets, sub_hashes)
    assert both.tolist() == [row_id >> (64 - sum(bits)) if sum(bits) else 0 for row_id in ids]


@pytest.mark.parametrize("buckets", [0, -1, 3, 12, 1 << 17])
def test_a_shape_refuses_buckets_that_ids_cannot_address(buckets: int) -> None:
    with pytest.raises(ValueError, match=f"'m': expected a power of two up to 65536.*{buckets}"):
        Shape("m", buckets, 2, "fingerprint", "spec")


@given(bits=st.integers(0, 20))
def test_a_model_of_few_buckets_has_as_many_sub_hashes_as_one_of_many(bits: int) -> None:
    found = sub_hashes_for(1 << bits)
    assert found & (found - 1) == 0
    assert 256 <= found <= MOST_SUB_HASHES
    expected = {1: 4096, 4: 4096, 8: 2048, 16: 1024, 64: 256, 1024: 256}
    assert found == expected.get(1 << bits, found)


def test_a_row_table_adds_deltas_like_a_dictionary() -> None:
    dice = random.Random(5)
    table = RowTable(1)
    truth: dict[int, tuple[int, int, int, int, np.float32]] = {}
    pool = [dice.getrandbits(64) for _ in range(5000)]
    for _ in range(40):
        ids = np.unique(np.array(dice.sample(pool, 300), np.uint64))
        count = ids.shape[0]
        small = [np.array([dice.randrange(9) for _ in range(count)], np.uint32) for _ in range(4)]
        values = np.array([dice.gauss(0, 1) for _ in range(count)], np.float32).reshape(count, 1)
        table.add(RowDeltas._make([ids, *small, values]))
        for i, row_id in enumerate(ids.tolist()):
            shows, clicks, first, last, value = truth.get(row_id, (0, 0, NEVER, 0, np.float32(0)))
            added = [int(column[i]) for column in small]
            truth[row_id] = (
                shows + added[0],
                clicks + added[1],
                min(first, added[2]),
                max(last, added[3]),
                value + values[i, 0],
            )
    assert len(table) == len(truth) > 2048
    rows = table.take(table.find(np.array(list(truth), np.uint64)))
    for i, row in enumerate(truth.values()):
        assert tuple(column[i] for column in rows[1:5]) == row[:4]
        assert rows.values[i, 0] == row[4]
    assert table.find(np.array([1, 2, 3], np.uint64)).tolist() == [-1, -1, -1]
    other = RowTable(1)
    other.put(table.everything())
    assert same(other.everything(), table.everything())
    table.clear(table.find(rows.ids[:7]))
    gone = table.take(table.find(rows.ids[:7]))
    assert not (gone.shows.any() or gone.clicks.any() or gone.last_seen.any() or gone.values.any())
    assert set(gone.first_seen.tolist()) == {NEVER}
