"""Tests that freed memory returns to the operating system, and only when there is some."""

import ctypes
import threading
from itertools import pairwise

import pytest

from headrace.runtime.freed_memory import (
    GROWN_BYTES,
    LONGEST_PAUSE,
    Trimmer,
    glibc_trim,
    own_bytes,
    returned_memory,
)

MB = 1 << 20


class Memory:
    """A process whose memory a test sets."""

    def __init__(self) -> None:
        self.held, self.needed, self.trims = 100 * MB, 100 * MB, 0

    def trim(self) -> None:
        self.trims += 1
        self.held = self.needed

    def look(self, trimmer: Trimmer, held: int) -> int:
        """Return how often the memory was trimmed since the begin."""
        self.held = held
        trimmer.check()
        return self.trims


def test_memory_is_trimmed_only_after_it_has_grown() -> None:
    memory = Memory()
    trimmer = Trimmer(lambda: memory.held, memory.trim)
    assert memory.look(trimmer, 100 * MB) == 0
    assert memory.look(trimmer, 100 * MB + GROWN_BYTES - 1) == 0
    assert memory.look(trimmer, 100 * MB + GROWN_BYTES) == 1  # to 100 MB again
    memory.needed = 90 * MB
    assert memory.look(trimmer, 90 * MB) == 1
    assert memory.look(trimmer, 110 * MB) == 2  # grown since it was least


def test_memory_that_was_in_use_when_it_was_trimmed_is_trimmed_again() -> None:
    memory = Memory()
    trimmer = Trimmer(lambda: memory.held, memory.trim)
    memory.needed = 200 * MB
    assert memory.look(trimmer, 200 * MB) == 1
    memory.needed = 100 * MB
    assert memory.look(trimmer, 200 * MB) == 2
    assert memory.held == 100 * MB
    for _ in range(2 * LONGEST_PAUSE):
        assert memory.look(trimmer, 100 * MB) == 2


def test_memory_that_stays_in_use_is_trimmed_ever_less_often() -> None:
    memory = Memory()
    trimmer = Trimmer(lambda: memory.held, memory.trim)
    memory.needed = 200 * MB
    trims = [memory.look(trimmer, 200 * MB) for _ in range(8 * LONGEST_PAUSE)]
    at = [look for look, count in enumerate(trims) if look == 0 or count > trims[look - 1]]
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert pauses == sorted(pauses)
    assert pauses[0] <= 2
    assert pauses[-1] == LONGEST_PAUSE
    assert memory.look(trimmer, 200 * MB + GROWN_BYTES) == trims[-1] + 1  # at once


@pytest.mark.skipif(glibc_trim() is None, reason="another C library")
def test_memory_that_another_thread_freed_returns_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    size, count = 64 << 10, 512
    last: list[int] = []

    def fill_and_free() -> None:
        taken = [libc.malloc(size) for _ in range(count)]
        for address in taken:
            ctypes.memset(address, 1, size)
        last.append(taken.pop())  # above all others, so that glibc cannot cut the arena
        for address in taken:
            libc.free(address)

    thread = threading.Thread(target=fill_and_free)
    thread.start()
    thread.join()
    before = own_bytes()
    trim = glibc_trim()
    assert trim is not None
    trim()
    returned = before - own_bytes()
    libc.free(last.pop())
    assert returned > size * count // 2


def test_a_process_looks_at_its_memory_until_its_end() -> None:
    with returned_memory(look_s=0.001):
        pass
    assert not [each for each in threading.enumerate() if each.name == "freed memory"]
