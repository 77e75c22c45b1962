"""Numbers the lines of a text file while a parser reads it.

The parser of CSV counts neither empty lines nor, in its rows, the header and the lines that it
skips. A message must name the line that an editor shows. A value with a line break counts as one
line.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


class NumberedLines:
    """A readable file that notes its empty lines as it is read."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._filled = 0
        self._filled_before = array("q")
        """For each empty line, the count of lines with text before it."""
        self._begun = False
        """Whether the line at the end of what was read has text."""

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return bool(self._stream.closed)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def read(self, size: int | None = None) -> bytes:
        """Return the next bytes."""
        read: bytes = self._stream.read(size)
        if read.startswith((b"\n", b"\r\n")) or b"\n\n" in read or b"\n\r\n" in read:
            self._note_each(read)
        else:
            ended = read.count(b"\n")
            self._filled += ended
            last = read[read.rfind(b"\n") + 1 :].strip(b"\r")
            self._begun = bool(last) or (self._begun and not ended)
        return read

    def _note_each(self, read: bytes) -> None:
        *ended, last = read.split(b"\n")
        for text in ended:
            if self._begun or text.strip(b"\r"):
                self._filled += 1
            else:
                self._filled_before.append(self._filled)
            self._begun = False
        self._begun = self._begun or bool(last.strip(b"\r"))

    def line_of(self, filled: int) -> int:
        """Return the line in the file, from 1, of this line among those with text, from 1."""
        return filled + bisect_left(self._filled_before, filled)


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
