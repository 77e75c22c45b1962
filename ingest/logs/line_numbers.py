"""Finds the line of the file in which a row of a CSV begins.

The parser numbers rows. It counts neither empty lines nor the line breaks inside quoted values, and
a message must name the line that an editor shows. The file is therefore read a second time, as far
as a message needs. *Refused:* counting while the parser reads. Messages are rare, and a walk
through the quotes of all values takes longer than parsing them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_READ_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvLines:
    """The lines of a CSV and the rows that begin in them, as the parser divides it.

    A value is quoted if its first character is a quote. Two quotes within it are one of its own.
    """

    def __init__(self, stream: pa.NativeFile, delimiter: str) -> None:
        """stream: the unpacked file at its beginning, which only this object reads."""
        self._stream, self._delimiter = stream, delimiter.encode()
        self._rest = b""
        """The end of what was read: a line that goes on."""
        self._ended = False
        self._lines = self._rows = 0
        self._rows_before = array("q")
        """For each line in which no row begins, the count of rows that begin before it."""
        self._quoted_since = 0
        """The line in which the value begins that goes on in the next line; 0 without one."""
        self._quoted_bytes = 0

    def line_of(self, row: int) -> int:
        """Return the line in which this row begins, both from 1."""
        while self._rows < row and self._read():
            pass
        return row + bisect_left(self._rows_before, row)

    def unclosed(self, longest_bytes: int) -> int:
        """Return the line in which a quoted value begins that does not end; 0 without one.

        longest_bytes: of a value that ends.
        """
        while self._quoted_bytes <= longest_bytes and self._read():
            pass
        return self._quoted_since

    def _read(self) -> bool:
        """Read on; return whether there was more."""
        if self._ended:
            return False
        read: bytes = self._stream.read(_READ_BYTES)
        if not self._lines:
            read = read.removeprefix(_BYTE_ORDER_MARK)
        self._ended = not read
        text = self._rest + read
        whole = len(text)
        if not self._ended:  # a \\r at the end may be the first half of a line break
            whole = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        text, self._rest = text[:whole], text[whole:]
        if text:
            self._count(text.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
        return True

    def _count(self, text: bytes) -> None:
        empty = text.startswith(b"\n") or b"\n\n" in text
        if not (empty or self._quoted_since or b'"' in text):
            lines = text.count(b"\n") + (not text.endswith(b"\n"))
            self._lines += lines
            self._rows += lines
            return
        for line in text.removesuffix(b"\n").split(b"\n"):
            self._lines += 1
            if self._quoted_since or not line:
                self._rows_before.append(self._rows)
            else:
                self._rows += 1
            self._quoted_bytes += len(line) + 1
            self._quoted_since = self._quoted_at_end(line)
            if self._quoted_since in (0, self._lines):
                self._quoted_bytes = 0

    def _quoted_at_end(self, line: bytes) -> int:
        """Return the line in which the value begins that is quoted at the end of this line."""
        if b'"' not in line:
            return self._quoted_since
        at, since = 0, self._quoted_since
        while True:
            if since:
                end = line.find(b'"', at)
                while line[end + 1 : end + 2] == b'"' and end >= 0:
                    end = line.find(b'"', end + 2)
                if end < 0:
                    return since
                at, since = end + 1, 0
            elif line[at : at + 1] == b'"':
                at, since = at + 1, self._lines
                continue
            at = line.find(self._delimiter, at) + 1
            if not at:
                return 0


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
