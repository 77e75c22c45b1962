"""A message that one process leaves for others, in a file that all of them map.

There are two places, each with a number, a length, a checksum and the message. A message is written
over the older of the two, its head last; who reads takes the newer whose checksum is right. So a
message is seen whole or not at all: who reads while one is written has the one before, and a writer
that is killed in the middle has left that one untouched. Nobody waits for anybody.

One process writes at a time; writers who take turns hold a lock (`lock`), which the system lets go
when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEAD = struct.Struct("<QII")
_NUMBER = struct.Struct("<Q")
_TRIES = 1_000
"""Each is undone only by another message within its microseconds."""


class MessageTooLong(ValueError):
    """A message does not fit on its board."""


class MailboxMessage(NamedTuple):
    """What stands on a board."""

    number: int
    """Of this message: 1 for the first."""
    content: bytes


class Mailbox:
    """A file with one message, of `size` bytes at most."""

    def __init__(self, file: Path, size: int = 8 << 10) -> None:
        """Map the file, which is made if it is not there; all who map it name the same size."""
        self._place = _HEAD.size + size
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, 2 * self._place)
        self._memory = mmap.mmap(self._file, 2 * self._place)

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()
        os.close(self._file)

    def marks(self) -> tuple[bytes, bytes]:
        """Return what is another after each message, and costs less to read than one."""
        memory, place = self._memory, self._place
        return memory[: _HEAD.size], memory[place : place + _HEAD.size]

    def read(self) -> MailboxMessage | None:
        """Return the newest message; None if there is none yet.

        Never one that is older than what was read before: if a place was written meanwhile, the
        other may have been the newer, and both are read again.
        """
        for _ in range(_TRIES):
            before = self.marks()
            if not any(_HEAD.unpack(mark)[0] for mark in before):
                return None
            found = [each for each in (self._at(0), self._at(1)) if each is not None]
            if found and self.marks() == before:
                return max(found)
        return None

    def write(self, content: bytes) -> int:
        """Put a message in the place of the one there is; return its number. Raises
        MessageTooLong."""
        if len(content) > self._place - _HEAD.size:
            size = self._place - _HEAD.size
            raise MessageTooLong(
                f"expected a message of at most {size} bytes, found {len(content)}"
            )
        places = [self._at(0), self._at(1)]
        numbers = [each.number if each is not None else 0 for each in places]
        number = max(numbers) + 1
        first = numbers.index(min(numbers)) * self._place
        begin = first + _HEAD.size
        self._memory[begin : begin + len(content)] = content
        head = _HEAD.pack(number, len(content), _checksum(number, content))
        self._memory[first : first + _HEAD.size] = head
        return number

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only process that writes, as long as this lasts."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _at(self, which: int) -> MailboxMessage | None:
        """Return the message of a place if it is whole."""
        first = which * self._place
        number, length, checksum = _HEAD.unpack(self._memory[first : first + _HEAD.size])
        begin = first + _HEAD.size
        if not number or length > self._place - _HEAD.size:
            return None
        content = self._memory[begin : begin + length]
        return MailboxMessage(number, content) if _checksum(number, content) == checksum else None


def _checksum(number: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(_NUMBER.pack(number)))
