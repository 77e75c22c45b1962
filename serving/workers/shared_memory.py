"""Memory that several processes share: files of a folder, mapped.

The folder lies where files are memory (/dev/shm), or, where there is no such place, among temporary
files, which the system keeps in memory as far as it can. It is there as long as its server: who
made it holds a lock on it, and the next server removes the folders that nobody holds. So whatever
was killed, and however, nothing stays beyond the next start.

A table's memory is a file of its own (`SharedFiles`), which never changes its size: a table that
grows fills a new one. A file that is removed goes on existing for those who have it mapped; so a
worker answers from the old table until its requests are done, and the memory is given back with the
last.

Those who only read have it mapped read-only. Compiled kernels would take arrays that say so for
another type, and be compiled again; so the arrays do not say it (`read_file`), and a process that
wrote there nevertheless would be ended by the system.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np

from headrace.pserver import StoreError
from headrace.pserver.rows import ask_for_large_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_PREFIX = "headrace-serving-"
_HELD = "held"
"""Names the file that says that a folder's maker has come to lock it."""
_YOUNG_S = 60.0
"""Whoever makes a folder has locked it by then."""


class NoRoom(StoreError):
    """There is no room for a table where the processes of a server share memory."""


def shared_place() -> Path:
    """Return where files are memory, or as near to that as this system has it."""
    memory = Path("/dev/shm")  # noqa: S108 - folders there are made with names of their own
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def shared_folder(place: Path) -> Iterator[Path]:
    """Make a folder in `place` that is removed at the end, or by the next who makes one."""
    remove_left(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        (folder / _HELD).touch()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_left(place: Path) -> None:
    """Remove the folders whose servers were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or another removes it just now
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    found = os.open(folder, os.O_RDONLY)
    try:
        about = os.fstat(found)
        made = (folder / _HELD).exists() or time.time() - about.st_mtime > _YOUNG_S
        if made and about.st_uid == os.getuid():
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(found)


class SharedFiles:
    """Makes the memory of one table. One process makes, any number may read."""

    def __init__(self, folder: Path, table: str) -> None:
        """`table` begins the names of its files, and of no other's."""
        self._folder, self._table = folder, f"{table}."
        self.newest = ""
        """The file that was made last; empty if none was."""

    def __call__(self, size: int) -> npt.NDArray[np.uint8]:
        """Return so many bytes of zeros, in a new file. Raises NoRoom."""
        room = _room(self._folder)
        if size > room:
            raise NoRoom(
                f"--workers / HEADRACE_SERVING_WORKERS: expected room for {size >> 20} MiB of rows "
                f"in {self._folder.parent}, found {room >> 20} MiB: make it larger "
                "(--shm-size of a container), or answer with one worker"
            )
        name = f"{self._table}{uuid4().hex}"
        file = os.open(
            self._folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            os.ftruncate(file, size)
            memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        ask_for_large_pages(memory)
        self.newest = name
        return np.frombuffer(memory, np.uint8)

    def keep(self, *names: str) -> None:
        """Remove all files of the table but the newest and those named."""
        for file in self._folder.glob(f"{self._table}*"):
            if file.name != self.newest and file.name not in names:
                file.unlink(missing_ok=True)


class _Mapped:
    """Mapped memory, for numpy: arrays of it hold on to this."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        about = memory.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def read_file(file: Path) -> npt.NDArray[np.uint8]:
    """Return another's memory, to be read only. Raises FileNotFoundError if it was removed."""
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    ask_for_large_pages(memory)
    return np.asarray(_Mapped(np.frombuffer(memory, np.uint8)))


def _room(folder: Path) -> int:
    """Return how many bytes more there is room for, when all files here are full."""
    about = os.statvfs(folder)
    promised = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            has = file.stat()
            promised += max(0, has.st_size - 512 * has.st_blocks)
    return about.f_bavail * about.f_frsize - promised
