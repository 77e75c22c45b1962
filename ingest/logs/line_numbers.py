"""Finds the line of the file in which a row of a CSV begins.

Arrow numbers rows. It counts neither empty lines nor the line breaks inside quoted values, and a
message must name the line that an editor shows. Python's parser divides a file into the same rows
and counts lines, so it reads the file a second time, as far as a message needs. *Refused:* Python's
parser alone, which is ten times slower than Arrow's.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_END = "the last line\n"
"""Follows the file. If a quoted value takes it, the value does not end."""


class CsvLines:
    """The lines of a CSV and the rows that begin in them.

    A value is quoted if its first character is a quote. Two quotes within it are one of its own.
    """

    def __init__(self, stream: pa.NativeFile, delimiter: str, longest: int) -> None:
        """stream: the unpacked file at its beginning, which only this object reads.

        longest: bytes of a quoted value that ends.
        """
        text = io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", "replace", newline="")
        self._rows = csv.reader(chain(text, (_END,)), delimiter=delimiter)
        self._longest, self._count, self._unclosed = longest, 0, 0
        self._last = 1, [""]
        """The last row and the line in which it begins."""
        self._gaps = [(0, 0)]
        """Each row that follows lines in which no row begins, and the count of these so far."""

    def line_of(self, row: int) -> int:
        """Return the line in which this row begins, both from 1."""
        self._read(row)
        return row + self._gaps[bisect_right(self._gaps, row, key=itemgetter(0)) - 1][1]

    def unclosed(self) -> int:
        """Return the line in which a quoted value begins that does not end; 0 without one."""
        self._read(None)
        return self._unclosed

    def _read(self, row: int | None) -> None:
        """Read on to a row, or to the end."""
        before = csv.field_size_limit(self._longest)  # of the whole process
        try:
            while row is None or self._count < row:
                begin = self._rows.line_num + 1
                if last := next(self._rows):
                    self._count += 1
                    self._last = begin, last
                    if begin - self._count != self._gaps[-1][1]:
                        self._gaps.append((self._count, begin - self._count))
        except StopIteration:
            begin, last = self._last
            if last[-1] != _END.strip():
                self._unclosed = begin + sum(cell.count("\n") for cell in last[:-1])
        except csv.Error:  # the limit
            self._unclosed = begin
        finally:
            csv.field_size_limit(before)


def after_skipped(first: int, rows: int, skipped: Sequence[int]) -> int:
    """Return the number of a row that comes `rows` after the row `first`, both from 1.

    skipped: numbers of the lines that are no rows, in rising order; those before `first` are
    ignored.
    """
    number = first + rows
    for each in skipped:
        if first <= each <= number:
            number += 1
    return number
