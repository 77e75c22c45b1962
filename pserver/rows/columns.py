"""The columns of a table of rows, and their memory.

All columns of a row are together in memory (`lay_out`). A reader of a row nearly always needs all
of it, and the row is nearly always outside of every cache. Stored column by column, each column
would cost a cache miss.

A table in a process's own memory maps addresses for eight times the rows it needs. They take no
memory until they are written. A growing table therefore stays in place. *Refused:* copying it; that
took longer the larger the table was, while all readers waited. Systems without memory overcommit
get no headroom. Memory that is passed in holds only the rows asked for, with slots and count in the
same piece: other processes read a table in memory that they share (`columns_in`).

Further data of a row, such as a learner's pending deltas, is in the row, too: one cache miss serves
both.
"""

import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from headrace.pserver.intrinsics.row_view import record_of

Memory = Callable[[int], npt.NDArray[np.uint8]]
Arrays = dict[str, npt.NDArray[Any]]

Kinds = dict[str, tuple[Any, ...]]

_LINE = 64
"""Bytes of a cache line."""
_TIMES = 8
"""Headroom of own memory: addresses for this many times the rows needed."""
FEW = 1024
"""Rows below which headroom is not worthwhile; the initial capacity of every table."""
_MAPPED = 1 << 20
"""Bytes from which memory is mapped and not allocated. Mapped memory is taken when written."""

_COUNTERS: Kinds = {
    "shows": (np.uint64,),
    "clicks": (np.uint64,),
    "first_seen": (np.uint32,),
    "last_seen": (np.uint32,),
}


def row_record(*names: str) -> Any:
    """Return a function for a row's counters, and its floats by these names (all, or the first).

    The function takes `TableColumns.shows` and a place. For use inside kernels.
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
    """Return the type of rows with these columns, of `size` bytes (0: the least multiple of 8)."""
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
"""Size of a row's columns before its values, in floats."""


class TableColumns(NamedTuple):
    """The arrays of a table. The first `count[0]` places are rows; `count[1]` counts changes of
    rows.
    """

    slots: npt.NDArray[np.int32]  # (2^k,) place of the row, or -1
    count: npt.NDArray[np.int64]  # type: ignore[assignment]  # (2,)
    ids: npt.NDArray[np.uint64]  # (capacity,)
    shows: npt.NDArray[np.uint64]  # (capacity,)
    clicks: npt.NDArray[np.uint64]  # (capacity,)
    first_seen: npt.NDArray[np.uint32]  # (capacity,) seconds, NEVER if never
    last_seen: npt.NDArray[np.uint32]  # (capacity,) seconds
    values: npt.NDArray[np.float32]  # (capacity, width)


def make_columns(
    rows: int, width: int, memory: Memory | None, extra: Kinds
) -> tuple[TableColumns, Arrays]:
    """Return empty columns with room for at least `rows`, and the columns `extra`, all zeros.

    memory: allocates shared memory; None for own memory. extra: type, and shape unless it is a
    single number, of further columns in the rows. Raises ValueError if both are given.
    """
    if memory is not None:
        if extra:
            raise ValueError(f"expected no columns beside a table in shared memory, got {extra}")
        columns = columns_in(memory(columns_size(rows, width)), rows, width)
        columns.slots.fill(-1)
        return columns, {}
    ahead = rows if rows <= FEW else _TIMES * rows
    kinds = _columns(width) | extra
    try:
        laid = lay_out(ahead, kinds, in_lines=bool(extra))
    except MemoryError:  # a system without overcommit
        laid = lay_out(rows, kinds, in_lines=bool(extra))
    apart = {name: laid.pop(name) for name in extra}
    return TableColumns(empty_slots(rows), np.zeros(2, np.int64), **laid), apart


def empty_slots(rows: int) -> npt.NDArray[np.int32]:
    """Return an index with room for this many rows, which leave it at most half full."""
    return np.full(_slots(rows), -1, np.int32)


def own_memory(size: int) -> npt.NDArray[np.uint8]:
    """Return this many bytes of zeros, at the beginning of a cache line.

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
            f"expected {size} bytes of address space for rows, got none: {error}"
        ) from error
    ask_for_large_pages(mapped)
    return np.frombuffer(mapped, np.uint8)


def ask_for_large_pages(mapped: mmap.mmap) -> None:
    """Ask for pages of 2 MiB, which need fewer lookups of addresses, if the system has them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the system has none, or none for files
            mapped.madvise(mmap.MADV_HUGEPAGE)


def lay_out(capacity: int, columns: Kinds, *, in_lines: bool = False) -> Arrays:
    """Return columns of zeros, each (capacity, ...), laid out row by row in memory.

    columns: type of each, and shape unless it is a single number. in_lines: begin each row with a
    cache line, unless that takes more than a third more memory.
    """
    row = _row_type(columns)
    if in_lines:
        lines = -(-row.itemsize // _LINE)
        if 3 * _LINE * lines <= 4 * row.itemsize:
            row = _row_type(columns, _LINE * lines)
    rows = own_memory(capacity * row.itemsize).view(row)
    return {name: rows[name] for name in columns}


def copy_rows(old: TableColumns, new: TableColumns, places: npt.NDArray[np.int64]) -> None:
    """Copy the rows at these places, with everything beside them, to the first places of `new`."""
    # clipped, because numpy otherwise copies first, in case a place is invalid
    first = _whole_rows(new.ids)[: places.shape[0]]
    np.take(_whole_rows(old.ids), places, axis=0, out=first, mode="clip")


def copy_first_rows(old: TableColumns, new: TableColumns, count: int) -> None:
    """Copy the first `count` rows, with everything beside them, to the same places of `new`."""
    _whole_rows(new.ids)[:count] = _whole_rows(old.ids)[:count]


def _whole_rows(first: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return everything in the rows, (rows, words), given their first column.

    first: (rows,), from `lay_out`. Copying column by column takes twice the time.
    """
    words = first.strides[0] // first.itemsize
    return as_strided(first, (first.shape[0], words), (first.strides[0], first.itemsize))


def columns_size(capacity: int, width: int) -> int:
    """Return the bytes of a table's columns."""
    return _LINE + 4 * _slots(capacity) + capacity * _row_type(_columns(width)).itemsize


def columns_in(memory: npt.NDArray[np.uint8], capacity: int, width: int) -> TableColumns:
    """Return the columns in `memory` as they are: another process may have written them.

    memory: (columns_size,), at the beginning of a cache line. Zeros are not a valid table: all
    slots of a new one have to be set to -1.
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
