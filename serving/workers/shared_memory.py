"""Memory that several processes share: mapped files of a folder.

The folder is in /dev/shm, whose files are memory. On systems without it, the folder is among the
temporary files, which the system caches. The server that creates the folder holds a lock on it, and
every server removes unlocked folders when it starts. After any kill, nothing thus remains beyond
the next start.

Each table has a file of its own (`SharedFiles`) of constant size: a table that grows fills a new
file. A removed file stays valid for the processes that have it mapped. A worker thus answers from
the old table until its requests are done, and the memory is freed with the last of them.

Readers map the file read-only. Their arrays are not marked read-only (`read_file`), because
compiled kernels would treat them as another type and compile again. The system kills a process
that writes to such an array.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from headrace.pserver.errors import StoreError
from headrace.pserver.rows.columns import ask_for_large_pages

_PREFIX = "headrace-serving-"
_HELD = "held"
"""Name of the file that marks a folder as locked by its creator."""
_YOUNG_S = 60.0
"""Age at which a folder without that file counts as abandoned."""


class NoRoom(StoreError):
    """The shared memory has no room for a table."""


def shared_place() -> Path:
    """Return the folder whose files are memory, or the folder of temporary files."""
    memory = Path("/dev/shm")  # noqa: S108 - `mkdtemp` chooses unique names there
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def shared_folder(place: Path) -> Iterator[Path]:
    """Create a folder in `place`. It is removed at the end, or by the next server."""
    remove_left(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        (folder / _HELD).touch()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_left(place: Path) -> None:
    """Remove the folders whose servers were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed at the same time
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    found = os.open(folder, os.O_RDONLY)
    try:
        about = os.fstat(found)
        complete = (folder / _HELD).exists() or time.time() - about.st_mtime > _YOUNG_S
        if complete and about.st_uid == os.getuid():
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(found)


class SharedFiles:
    """Allocates the memory of one table. One process allocates, any number may read."""

    def __init__(self, folder: Path, table: str) -> None:
        """table: unique prefix of the names of its files."""
        self._folder, self._table = folder, f"{table}."
        self.newest = ""
        """The newest file; empty before the first."""

    def __call__(self, size: int) -> npt.NDArray[np.uint8]:
        """Return `size` bytes of zeros in a new file, all of them taken. Raises NoRoom."""
        name = f"{self._table}{uuid4().hex}"
        path = self._folder / name
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _take(file, size)
            memory = mmap.mmap(file, size)
        except OSError as error:
            path.unlink()
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
                raise
            raise self._no_room(size) from error
        finally:
            os.close(file)
        ask_for_large_pages(memory)
        self.newest = name
        return np.frombuffer(memory, np.uint8)

    def _no_room(self, size: int) -> NoRoom:
        about = os.statvfs(self._folder)
        free = about.f_bavail * about.f_frsize
        return NoRoom(
            f"--workers / HEADRACE_SERVING_WORKERS: expected room for {size >> 20} MiB of rows "
            f"in {self._folder.parent}, got {free >> 20} MiB: make it larger "
            "(--shm-size of a container), or use one worker"
        )

    def keep(self, *names: str) -> None:
        """Remove all files of the table except the newest and `names`."""
        for file in self._folder.glob(f"{self._table}*"):
            if file.name != self.newest and file.name not in names:
                file.unlink(missing_ok=True)


class _Mapped:
    """Mapped memory for numpy. Arrays keep a reference to it."""

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self._memory = memory
        about = memory.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def read_file(file: Path) -> npt.NDArray[np.uint8]:
    """Map the file of another process. Never write to it. Raises FileNotFoundError."""
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    ask_for_large_pages(memory)
    return np.asarray(_Mapped(np.frombuffer(memory, np.uint8)))


def _take(file: int, size: int) -> None:
    """Make a file of `size` bytes that the file system has set aside. Raises OSError.

    A file without blocks gets them when its pages are written. If another process has filled the
    file system meanwhile, the system kills the writer with SIGBUS. macOS has no `posix_fallocate`;
    its temporary files are on a disk.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)
