"""Growing tables: rows that stay in place, and readers that go on."""

import numpy as np
import numpy.typing as npt
import pytest

from headrace.pserver.rows import columns
from headrace.pserver.rows.columns import FEW, own_memory
from headrace.pserver.rows.deltas import RowDeltas
from headrace.pserver.rows.table import RowTable, find


def _deltas(first: int, count: int) -> RowDeltas:
    ids = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    ones = np.ones(count, np.uint32)
    values = np.arange(first, first + 3 * count, dtype=np.float32)[: 3 * count].reshape(count, 3)
    return RowDeltas(ids, ones, ones, ones, ones, values)


def _grown(rows: int) -> tuple[RowTable, list[int], npt.NDArray[np.float32]]:
    """Return a table of this many rows, the sizes at which its rows moved, and their values."""
    table, moved, values = RowTable(3), [], []
    for first in range(0, rows, 100):
        before = table.columns.ids
        deltas = _deltas(first, min(100, rows - first))
        table.add(deltas)
        values.append(deltas.values)
        if table.columns.ids is not before:
            moved.append(first)
    return table, moved, np.concatenate(values)


def test_table_rows_move_once_and_then_stay_for_eight_times_as_many() -> None:
    rows = 10 * FEW
    table, moved, values = _grown(rows)
    assert moved == [1000]
    assert rows <= table.capacity <= 4 * rows
    ids = _deltas(0, rows).ids
    assert table.find(ids).tolist() == list(range(rows))
    np.testing.assert_array_equal(table.take(table.find(ids)).values, values)
    assert (table.find(_deltas(rows, 50).ids) < 0).all()


def test_an_old_index_of_a_table_stays_readable_while_rows_are_added_to_a_new_one() -> None:
    table = RowTable(3)
    known = _deltas(0, 2 * FEW)
    table.add(known)
    old = table.columns
    table.add(_deltas(2 * FEW, table.capacity))
    assert table.columns.slots is not old.slots
    assert table.columns.ids is old.ids, "the rows stayed where they were"
    assert [find(old.slots, old.ids, row_id) for row_id in known.ids] == list(range(2 * FEW))


def test_columns_beside_a_table_move_with_their_rows_and_are_zeros_in_new_ones() -> None:
    kinds = {"mark": (np.uint32,), "more": (np.float32, (3,))}
    table = RowTable(3, extra=kinds)
    marked = np.zeros(0, np.int64)
    for first in range(0, 20 * FEW, FEW):
        places = table.add(_deltas(first, FEW))
        extra = table.extra
        assert not extra["mark"][places].any()
        assert not extra["more"][places].any()
        extra["mark"][places] = places + 1
        extra["more"][places] = places[:, np.newaxis]
        marked = np.concatenate([marked, places])
        assert extra["mark"][marked].tolist() == (marked + 1).tolist()
    gone = marked[marked % 3 > 0]
    table.clear(gone)
    moved = table.compact()
    stayed = np.flatnonzero(moved >= 0)
    assert stayed.tolist() == marked[marked % 3 == 0].tolist()
    assert table.extra["mark"][moved[stayed]].tolist() == (stayed + 1).tolist()
    assert (table.extra["more"][moved[stayed]] == stayed[:, np.newaxis]).all()
    assert not table.extra["mark"][table.find_or_add(_deltas(0, 3).ids)[1:]].any()


def test_a_table_in_shared_memory_has_no_columns_beside() -> None:
    kinds = {"mark": (np.uint32,)}
    with pytest.raises(ValueError, match="mark"):
        RowTable(3, memory=own_memory, extra=kinds)
    with pytest.raises(ValueError, match="mark"):
        RowTable(3, columns=RowTable(3).columns, extra=kinds)


@pytest.mark.parametrize(
    ("floats", "size"), [(0, 64), (1, 64), (2, 64), (3, 72), (5, 88), (6, 128), (34, 320)]
)
def test_table_rows_begin_with_a_cache_line_unless_that_takes_a_third_more(
    floats: int, size: int
) -> None:
    pending = {"counters": (np.uint32, (4,)), "gained": (np.float32, (floats,))}
    table = RowTable(floats, extra=pending)
    assert table.columns.ids.strides == (size,)
    assert table.columns.ids.ctypes.data % 64 == 0


def test_a_table_has_no_headroom_without_memory_overcommit(monkeypatch: pytest.MonkeyPatch) -> None:
    def stingy(size: int) -> npt.NDArray[np.uint8]:
        if size > 200_000:
            raise MemoryError(size)
        return own_memory(size)

    monkeypatch.setattr(columns, "own_memory", stingy)
    table, moved, values = _grown(3 * FEW)
    assert moved == [1000, 2000]
    found = table.take(table.find(_deltas(0, 3 * FEW).ids))
    np.testing.assert_array_equal(found.values, values)


@pytest.mark.parametrize("size", [1, 63, 64, 1 << 20, (3 << 20) + 5])
def test_own_memory_is_zeros_at_the_beginning_of_a_cache_line(size: int) -> None:
    memory = own_memory(size)
    assert memory.shape == (size,)
    assert memory.ctypes.data % 64 == 0
    assert not memory.any()
    memory[:] = 1
    assert memory.all()


def test_memory_that_the_system_lacks_is_an_error_with_its_size() -> None:
    with pytest.raises(MemoryError, match=f"expected {1 << 60} bytes"):
        own_memory(1 << 60)
