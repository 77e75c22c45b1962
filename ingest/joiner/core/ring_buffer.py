"""Ring buffers in columns: elements enter at one end and leave at the other, in little memory.

An element has a sequence number that only grows. In every column it is at that number modulo the
capacity, a power of two. The capacity reserves addresses only. Memory is used between the two ends:
a page that was never written takes none, and pages behind the head are given back. Growing moves
the elements piece by piece and gives the old pages back on the way. So a ring needs the memory of
its elements and a few pages, at any time. Refused: arrays that double. A queue of some gigabytes
would take three times its size for a moment, and the kernel would kill the process.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_PIECE_BYTES = 1 << 20
"""Bytes moved at a time while growing, and the least worth giving back behind the head."""
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Column(NamedTuple):
    """Type and shape of a ring's elements in one column."""

    kind: type[np.generic]
    width: int | None = None
    """Items of a row; None: elements are scalars."""

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.kind).itemsize * (1 if self.width is None else self.width)


class _Pages:
    """One column in its own memory mapping."""

    def __init__(self, column: Column, capacity: int, head: int) -> None:
        self._element_bytes = column.element_bytes
        self._size = capacity * self._element_bytes
        self._kept = self._page_of(head)
        """Byte number, growing like sequence numbers, before which pages were given back."""
        self._map: mmap.mmap | None = None
        shape = (capacity,) if column.width is None else (capacity, column.width)
        if self._size == 0:
            self.array: Array = np.zeros(shape, column.kind)
        else:
            self._map = mmap.mmap(-1, self._size, _FLAGS)
            self.array = np.frombuffer(self._map, column.kind).reshape(shape)

    def move(self, other: _Pages, head: int, tail: int) -> None:
        """Copy elements to other, larger pages, and give these back."""
        old, new = self.array.shape[0], other.array.shape[0]
        most = max(1, _PIECE_BYTES // max(1, self._element_bytes))
        for begin, end in _runs(head, tail, old, most):
            source, target, count = begin % old, begin % new, end - begin
            other.array[target : target + count] = self.array[source : source + count]
            self.release(end, tail)

    def release(self, head: int, tail: int) -> None:
        """Give back whole pages before `head`, unless elements up to `tail` reuse them."""
        end = self._page_of(head)
        # in the smallest rings one page has elements of both ends
        if self._map is not None and self._size % mmap.PAGESIZE == 0:
            used_again = -self._page_of(self.array.shape[0] - tail)
            for begin, stop in _runs(max(self._kept, used_again), end, self._size, self._size):
                self._map.madvise(mmap.MADV_DONTNEED, begin % self._size, stop - begin)
        self._kept = end

    def held_bytes(self, tail: int) -> int:
        """Return the memory of the elements up to `tail`."""
        return min(tail * self._element_bytes - self._kept, self._size)

    def _page_of(self, head: int) -> int:
        return head * self._element_bytes // mmap.PAGESIZE * mmap.PAGESIZE


class Ring:
    """Columns under the same sequence numbers."""

    def __init__(self, capacity: int, *columns: Column) -> None:
        self.capacity, self._columns = capacity, columns
        self._pages = [_Pages(column, capacity, 0) for column in columns]
        self._element_bytes = sum(column.element_bytes for column in columns)
        self._released = 0

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The columns; `grow` replaces them."""
        return tuple(pages.array for pages in self._pages)

    def held_bytes(self, tail: int) -> int:
        """Return the memory of the elements up to `tail`."""
        return sum(pages.held_bytes(tail) for pages in self._pages)

    def grow(self, needed: int, head: int, tail: int) -> bool:
        """Make room for `needed` elements; those from `head` to `tail` stay.

        Returns whether the columns were replaced.
        """
        if needed <= self.capacity:
            return False
        capacity, grown = 1 << (needed - 1).bit_length(), []
        for column, pages in zip(self._columns, self._pages, strict=True):
            grown.append(_Pages(column, capacity, head))
            pages.move(grown[-1], head, tail)
        # all at once: another thread may read the metrics
        self._pages, self.capacity, self._released = grown, capacity, head
        return True

    def release(self, head: int, tail: int) -> None:
        """Give back the memory of elements before `head`, in large pieces; `tail` ends them."""
        if (head - self._released) * self._element_bytes >= _PIECE_BYTES:
            for pages in self._pages:
                pages.release(head, tail)
            self._released = head


def _runs(head: int, tail: int, capacity: int, most: int) -> list[tuple[int, int]]:
    """Split a range of sequence numbers where its places wrap, and into runs of at most `most`."""
    runs = []
    while head < tail:
        end = min(tail, head + most, (head // capacity + 1) * capacity)
        runs.append((head, end))
        head = end
    return runs
