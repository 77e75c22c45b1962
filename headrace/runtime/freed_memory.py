"""Returns memory that a process has freed to the operating system.

glibc keeps freed memory in an arena of the thread that asked for it. librdkafka has a thread for
each broker and each client, and after an outage these threads receive the records of the outage and
of the label window at once. A joiner of 500 events/s kept 50 MB of free memory after one outage and
120 MB after three. Python's collector and `free` do not change that; `malloc_trim` does.

A thread looks at the memory every ten seconds, and trims it if the process has grown. During an
outage much of the memory is still in use and is freed later, so the thread trims again while the
process stays grown: after 10 s, 20 s, 40 s and so on, at last every ten minutes. A process that
never grew pays nothing, and one that needs its memory pays some milliseconds in ten minutes.

*Refused:* fewer arenas (`MALLOC_ARENA_MAX`), which must be in the environment before the process
starts. *Refused:* fixed thresholds (`M_TRIM_THRESHOLD`), which end glibc's own adjustment: every
large array of numpy would then be mapped and unmapped.
"""

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.runtime.background_thread import RepeatingThread

GROWN_BYTES = 16 << 20
"""Growth that is worth a trim."""
LOOK_S = 10.0
LONGEST_PAUSE = 64
"""Looks between two trims of a process that stays grown."""
_STATM = Path("/proc/self/statm")


@contextmanager
def returned_memory(look_s: float = LOOK_S) -> Iterator[None]:
    """Return freed memory from a thread until the block ends. Does nothing without glibc."""
    trim = glibc_trim()
    if trim is None:
        yield
        return
    with RepeatingThread(Trimmer(own_bytes, trim).check, look_s, "freed memory"):
        yield


class Trimmer:
    """Trims when the memory has grown by `GROWN_BYTES`, and again while it stays grown."""

    def __init__(self, own_bytes: Callable[[], int], trim: Callable[[], object]) -> None:
        self._own_bytes, self._trim = own_bytes, trim
        self._least_bytes = self._left_bytes = own_bytes()
        self._pause = self._checks = 0

    def check(self) -> None:
        """Trim if the memory has grown since the last trim, or has stayed grown for a pause."""
        own_bytes = self._own_bytes()
        self._least_bytes = min(self._least_bytes, own_bytes)
        self._left_bytes = min(self._left_bytes, own_bytes)
        self._checks += 1
        if own_bytes >= self._left_bytes + GROWN_BYTES:
            self._pause = 1
        elif own_bytes < self._least_bytes + GROWN_BYTES or self._checks < self._pause:
            return
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._trim()
        self._left_bytes, self._checks = self._own_bytes(), 0


def own_bytes() -> int:
    """Return the resident memory of this process without files and shared pages (Linux)."""
    resident, shared = _STATM.read_text().split()[1:3]
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def glibc_trim() -> Callable[[], object] | None:
    """Return glibc's `malloc_trim`; None with another C library."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)
