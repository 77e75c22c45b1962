"""Opens a file as a stream of UTF-8: unpacked, and from UTF-16 if it begins with its mark.

The first bytes of a file say how it is packed, because downloads and servers change names. A file
that ends in the middle of a compressed stream is refused, because its rows would be missing without
a message.
"""

import io
import re
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from headrace.ingest.features.spec_text import SpecError

CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
"""Endings of names, after that of the format."""
_MARKS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
_ZIP = b"PK\x03\x04"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UNDECODED = re.compile(r"^CSV parse error: Row #(\d+): Expected \d+ columns")
"""Of a row of another width that Arrow could not show to its handler."""
_CONVERT = "convert the file, as with iconv -f latin1 -t utf-8"


def unpacked(stream: pa.NativeFile, path: Path) -> pa.NativeFile:
    """Return the text of the file at `path`, which `stream` reads from its beginning.

    Raises SpecError if the file is cut short at once, and for a ZIP archive.
    """
    with path.open("rb") as file:
        head = file.read(4)
    if head == _ZIP:
        raise SpecError(
            f"{path}: expected text, got a ZIP archive or a spreadsheet: unpack it, or export the "
            "spreadsheet as CSV"
        )
    codec = next((_MARKS[mark] for mark in _MARKS if head.startswith(mark)), None)
    if codec is not None:
        try:
            with pa.OSFile(str(path)) as packed:
                head = pa.CompressedInputStream(packed, codec).read(2)
        except OSError as error:
            raise refusal_of(path, error) from error
        stream = pa.CompressedInputStream(stream, codec)
    coded = head[:2] in _UTF_16
    return pa.transcoding_input_stream(stream, "utf-16", "utf-8") if coded else stream


def refusal_of(path: Path, error: Exception, kind: str = "log", place: str = "") -> SpecError:
    """Return the error to raise about a file whose bytes cannot be read.

    kind: of the file. place: in the file, as the end of a phrase.
    """
    said = str(error)
    if "runcated" in said or "nexpected end" in said:
        return SpecError(
            f"{path}: expected a whole file, got one that ends in the middle: copy it again"
        )
    if match := _UNDECODED.search(said):
        place = f" in line {match[1]} or after"
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in said or match:
        return SpecError(f"{path}: expected UTF-8, got other bytes{place}: {_CONVERT}")
    return SpecError(f"{path}: expected a {kind} file, got: {said}")


class UnpackedText(io.RawIOBase):
    """The unpacked bytes of an open file of events. Raises SpecError for a file cut short."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """file: at its beginning; its position tells how much of it is read."""
        self._path = path
        same = open(file.fileno(), "rb", closefd=False)  # noqa: SIM115  (Arrow closes it)
        self._stream = unpacked(pa.PythonFile(same, mode="r"), path)

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer; return the bytes read."""
        try:
            read: bytes = self._stream.read(len(buffer))
        except (OSError, UnicodeDecodeError) as error:
            raise refusal_of(self._path, error) from error
        buffer[: len(read)] = read
        return len(read)


def opened_text(file: BinaryIO, path: Path) -> BinaryIO:
    """Return the lines of an open file as UTF-8. Raises SpecError while reading."""
    text = io.BufferedReader(UnpackedText(file, path), 1 << 20)
    if text.peek(len(BYTE_ORDER_MARK)).startswith(BYTE_ORDER_MARK):
        text.read(len(BYTE_ORDER_MARK))
    return text
