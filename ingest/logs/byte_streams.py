"""Opens a file as a stream of UTF-8: unpacked, and from UTF-16 if it begins with its mark.

A file that ends in the middle of a compressed stream is refused, because its rows would be missing
without a message.
"""

import io
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from headrace.ingest.features.spec_text import SpecError

CODECS = {".gz": "gzip", ".zst": "zstd"}
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CONVERT = "convert the file, as with iconv -f latin1 -t utf-8"


def unpacked(stream: pa.NativeFile, path: Path) -> pa.NativeFile:
    """Return the text of the file at `path`, which `stream` reads from its beginning.

    Raises SpecError if the file is cut short at once.
    """
    with pa.OSFile(str(path)) as file:
        try:
            mark = _decompressed(file, path).read(2)
        except OSError as error:
            raise refusal_of(path, error) from error
    text = _decompressed(stream, path)
    return pa.transcoding_input_stream(text, "utf-16", "utf-8") if mark in _UTF_16 else text


def _decompressed(stream: pa.NativeFile, path: Path) -> pa.NativeFile:
    codec = CODECS.get(path.suffix.lower())
    return stream if codec is None else pa.CompressedInputStream(stream, codec)


def refusal_of(path: Path, error: Exception, kind: str = "log", place: str = "") -> SpecError:
    """Return the error to raise about a file whose bytes cannot be read.

    kind: of the file. place: in the file, as the end of a phrase.
    """
    said = str(error)
    if "runcated" in said or "nexpected end" in said:
        return SpecError(
            f"{path}: expected a whole file, got one that ends in the middle: copy it again"
        )
    if isinstance(error, UnicodeDecodeError) or "invalid UTF8" in said:
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
