"""Returns memory that a process has freed to the operating system.

glibc keeps freed memory in an arena of the thread that asked for it. librdkafka has a thread for
each broker and each client, and after an outage these threads receive the records of the outage and
of the label window at once. A joiner of 500 events/s kept 50 MB of free memory after one outage and
120 MB after three. Python's collector and `free` do not change that; `malloc_trim` does.

A thread looks at the memory every ten seconds, and trims it only if the process has grown. So a
process in a steady state pays nothing, and one that grows pays some milliseconds.

*Refused:* fewer arenas (`MALLOC_ARENA_MAX`), which must be in the environment before the process
starts. *Refused:* fixed thresholds (`M_TRIM_THRESHOLD`), which end glibc's own adjustment: every
large array of numpy would then be mapped and unmapped.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROWN_BYTES = 16 << 20
"""Growth since the last trim that is worth another one."""
LOOK_S = 10.0
_STATM = Path("/proc/self/statm")


@contextmanager
def returned_memory(look_s: float = LOOK_S) -> Iterator[None]:
    """Return freed memory from a thread until the block ends. Does nothing without glibc."""
    trim = glibc_trim()
    if trim is None:
        yield
        return
    done = threading.Event()
    trimmer = Trimmer(own_bytes, trim)

    def look_repeatedly() -> None:
        while not done.wait(look_s):
            trimmer.look()

    thread = threading.Thread(target=look_repeatedly, name="freed memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Trimmer:
    """Trims when the memory has grown by `GROWN_BYTES` since the last look or trim."""

    def __init__(self, own_bytes: Callable[[], int], trim: Callable[[], object]) -> None:
        self._own_bytes, self._trim = own_bytes, trim
        self._least_bytes = own_bytes()

    def look(self) -> None:
        """Trim if the memory has grown."""
        held = self._own_bytes()
        if held >= self._least_bytes + GROWN_BYTES:
            self._trim()
            self._least_bytes = self._own_bytes()
        else:
            self._least_bytes = min(self._least_bytes, held)


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
