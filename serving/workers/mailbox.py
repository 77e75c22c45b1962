"""A mailbox: one message from a process to others, in a file that all of them map.

The file has two slots, each with a number, a length, a checksum and a message. A writer overwrites
the older slot, its head last. A reader takes the newest slot with a valid checksum. A message is
thus seen completely or not at all: during a write readers get the previous message, and a writer
that is killed leaves that message intact. No process ever waits for another.

Only one process may write at a time. Several writers take turns with a lock (`lock`), which the
system releases if its holder dies.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("<QII")
_NUMBER = struct.Struct("<Q")
_TRIES = 1_000
"""Attempts of a read. One fails only if another message is written within its microseconds."""


class MessageTooLong(ValueError):
    """A message does not fit into its mailbox."""


class MailboxMessage(NamedTuple):
    """The content of a mailbox."""

    number: int
    """1 for the first message."""
    content: bytes


class Mailbox:
    """A file with one message of at most `size` bytes."""

    def __init__(self, file: Path, size: int = 8 << 10) -> None:
        """Map the file, or create it. All processes must give the same size."""
        self._place = _HEAD.size + size
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, 2 * self._place)
        self._memory = mmap.mmap(self._file, 2 * self._place)

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()
        os.close(self._file)

    def marks(self) -> tuple[bytes, bytes]:
        """Return the heads of both slots: they change with every message, and are cheap to read."""
        memory, place = self._memory, self._place
        return memory[: _HEAD.size], memory[place : place + _HEAD.size]

    def read(self) -> MailboxMessage | None:
        """Return the newest message; None before the first.

        Never older than a message that was read before: if a slot changes during a read, the other
        may have been newer, so both are read again.
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
        """Replace the message; return the new message's number. Raises MessageTooLong."""
        if len(content) > self._place - _HEAD.size:
            size = self._place - _HEAD.size
            raise MessageTooLong(f"expected a message of at most {size} bytes, got {len(content)}")
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
        """Exclude other writers."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _at(self, which: int) -> MailboxMessage | None:
        """Return the message of a slot if its checksum is valid."""
        first = which * self._place
        number, length, checksum = _HEAD.unpack(self._memory[first : first + _HEAD.size])
        begin = first + _HEAD.size
        if not number or length > self._place - _HEAD.size:
            return None
        content = self._memory[begin : begin + length]
        return MailboxMessage(number, content) if _checksum(number, content) == checksum else None


def _checksum(number: int, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(_NUMBER.pack(number)))
