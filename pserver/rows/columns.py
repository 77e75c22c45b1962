"""The columns of a table of rows, and the memory they lie in.

All columns of a row lie together (`lay_out`): who wants a row nearly always wants all of it, and a
row is somewhere that no cache holds. Column by column it would be a walk for each.

In a process's own memory there is room ahead: addresses for eight times the rows that are needed,
which take nothing until they are written. A table that grows stays where it is then; to copy it
took the longer the larger it was, with everybody waiting. Where a system promises no more memory
than it has, there is no room ahead. Memory that is handed in holds just the rows it was asked for,
slots and count beside them in one piece: other processes read a table that lies in memory they
share (`columns_in`).

Whoever keeps more of each row than a table does (a learner, what it has gained) has it lie in the
row, too: it is one walk for both.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import as_strided

from headrace.pserver.intrinsics import record_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Memory = Callable[[int], npt.NDArray[np.uint8]]
    Arrays = dict[str, npt.NDArray[Any]]

Kinds: TypeAlias = "dict[str, tuple[Any, ...]]"

_LINE = 64
"""Bytes that memory gives at a time."""
_TIMES = 8
"""Times as many rows as are needed that own memory has addresses for."""
FEW = 1024
"""Rows for which no room ahead is worth while: as many as any table has from the beginning."""
_MAPPED = 1 << 20
"""Bytes from which on memory is the system's, not the allocator's: untouched, it takes nothing."""

_COUNTERS: Kinds = {
    "shows": (np.uint64,),
    "clicks": (np.uint64,),
    "first_seen": (np.uint32,),
    "last_seen": (np.uint32,),
}


def row_record(*names: str) -> Any:
    """Return what gives a row's counters, and its floats by these names (all, or the first).

    What is returned takes `TableColumns.shows` and a place. For use inside kernels.
    """
    return record_of(_COUNTERS | dict.fromkeys(names, (np.float32,)))


counters_at = row_record()


def _columns(width: int) -> Kinds:
    return {
        "ids": (np.uint64,),
        **_COUNTERS,
        "values": (np.float32, (width,)),
    }


def _row_type(columns: Kinds, size: int = 0) -> np.dtype[np.void]:
    """Return the type of rows with these columns, of `size` bytes (0: as few, a multiple of 8)."""
    plain = np.dtype([(name, *kind) for name, kind in columns.items()])
    return np.dtype(
        {
            "names": list(columns),
            "formats": [plain[name] for name in columns],
            "offsets": [plain.fields[name][1] for name in columns] if plain.fields else [],
            "itemsize": size or -(-plain.itemsize // 8) * 8,
        }
    )


FLOATS_BEFORE = _row_type(_columns(0)).itemsize // 4
"""That the columns of a row before its values take the place of."""


class TableColumns(NamedTuple):
    """The arrays of a table. Only the first `count[0]` places of the columns are rows, which were
    changed `count[1]` times."""

    slots: npt.NDArray[np.int32]  # (2^k,) place of the row, or -1
    count: npt.NDArray[np.int64]  # type: ignore[assignment]  # (2,)
    ids: npt.NDArray[np.uint64]  # (capacity,)
    shows: npt.NDArray[np.uint64]  # (capacity,)
    clicks: npt.NDArray[np.uint64]  # (capacity,)
    first_seen: npt.NDArray[np.uint32]  # (capacity,) seconds, NEVER if never
    last_seen: npt.NDArray[np.uint32]  # (capacity,) seconds
    values: npt.NDArray[np.float32]  # (capacity, width)


def make_columns(
    rows: int, width: int, memory: Memory | None, beside: Kinds
) -> tuple[TableColumns, Arrays]:
    """Return columns without a row, that have room for so many or more; see above for `memory`.

    beside: type, and shape if it is no single number, of further columns that lie in the rows. They
    are returned, too, zeros all. Raises ValueError if there are to be any in memory handed in.
    """
    if memory is not None:
        if beside:
            raise ValueError(f"expected columns of a table alone in memory of others, got {beside}")
        made = columns_in(memory(columns_size(rows, width)), rows, width)
        made.slots.fill(-1)
        return made, {}
    ahead = rows if rows <= FEW else _TIMES * rows
    kinds = _columns(width) | beside
    try:
        laid = lay_out(ahead, kinds, in_lines=bool(beside))
    except MemoryError:  # the system promises no more than it has
        laid = lay_out(rows, kinds, in_lines=bool(beside))
    apart = {name: laid.pop(name) for name in beside}
    return TableColumns(empty_slots(rows), np.zeros(2, np.int64), **laid), apart


def empty_slots(rows: int) -> npt.NDArray[np.int32]:
    """Return an index that has room for so many rows, at most half full then."""
    return np.full(_slots(rows), -1, np.int32)


def own_memory(size: int) -> npt.NDArray[np.uint8]:
    """Return so many bytes of zeros, at the beginning of a line of a cache.

    Raises MemoryError if the system has no addresses for them.
    """
    if size < _MAPPED:
        memory = np.zeros(size + _LINE, np.uint8)
        first = -memory.ctypes.data % _LINE
        return memory[first : first + size]
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(
            f"expected {size} bytes for rows, the system has none: {error}"
        ) from error
    ask_for_large_pages(mapped)
    return np.frombuffer(mapped, np.uint8)


def ask_for_large_pages(mapped: mmap.mmap) -> None:
    """Ask for pages of 2 MiB, which spare walks to where pages are, if the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # it has none, or none for files
            mapped.madvise(mmap.MADV_HUGEPAGE)


def lay_out(capacity: int, columns: Kinds, *, in_lines: bool = False) -> Arrays:
    """Return columns of zeros, each (capacity, ...), that lie in memory row by row.

    columns: type, and shape if it is no single number, of each. in_lines: let each row begin with a
    line of a cache, unless that took more than a third more memory.
    """
    row = _row_type(columns)
    if in_lines:
        lines = -(-row.itemsize // _LINE)
        if 3 * _LINE * lines <= 4 * row.itemsize:
            row = _row_type(columns, _LINE * lines)
    rows = own_memory(capacity * row.itemsize).view(row)
    return {name: rows[name] for name in columns}


def copy_rows(old: TableColumns, new: TableColumns, places: npt.NDArray[np.int64]) -> None:
    """Copy the rows at these places to the first ones of new columns, with all that is beside."""
    # clipped, for else numpy makes a copy beforehand, lest a place is bad
    first = _whole_rows(new.ids)[: places.shape[0]]
    np.take(_whole_rows(old.ids), places, axis=0, out=first, mode="clip")


def copy_first_rows(old: TableColumns, new: TableColumns, count: int) -> None:
    """Copy so many rows to the same places of new columns, with all that is beside."""
    _whole_rows(new.ids)[:count] = _whole_rows(old.ids)[:count]


def _whole_rows(first: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return all that rows hold, (rows, words), given their first column: to copy them as they are.

    first: (rows,), laid out by `lay_out`. Column by column takes twice the time.
    """
    words = first.strides[0] // first.itemsize
    return as_strided(first, (first.shape[0], words), (first.strides[0], first.itemsize))


def columns_size(capacity: int, width: int) -> int:
    """Return how many bytes the columns of a table take, all in all."""
    return _LINE + 4 * _slots(capacity) + capacity * _row_type(_columns(width)).itemsize


def columns_in(memory: npt.NDArray[np.uint8], capacity: int, width: int) -> TableColumns:
    """Return the columns that lie in `memory`, as they are there: another may have written them.

    memory: (columns_size,), at the beginning of a line of a cache. Zeros are no table yet: all
    slots have to be -1.
    """
    row = _row_type(_columns(width))
    first = _LINE + 4 * _slots(capacity)
    rows = memory[first : first + capacity * row.itemsize].view(row)
    return TableColumns(
        memory[_LINE:first].view(np.int32),
        memory[:16].view(np.int64),
        **{name: rows[name] for name in _columns(width)},
    )


def _slots(capacity: int) -> int:
    return 1 << max(1, (2 * capacity - 1).bit_length())
