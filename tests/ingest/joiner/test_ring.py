"""Tests that a ring buffer keeps its elements, and uses memory only for them."""

import random
from collections import deque

import numpy as np
import psutil
import pytest

from headrace.ingest.joiner.core import ring_buffer as ring
from headrace.ingest.joiner.core.ring_buffer import Column, Ring
from tests.effort import seeds

COLUMNS = (Column(np.int64), Column(np.uint8), Column(np.uint64, 3), Column(np.float32, 0))


@pytest.mark.parametrize("seed", seeds(8))
def test_a_ring_buffer_behaves_like_a_queue_across_growth_and_release(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(ring, "_PIECE_BYTES", dice.choice((1, 5_000, 100_000)))
    held, queue = Ring(dice.choice((2, 4096)), *COLUMNS), deque[int]()
    head = tail = 0
    for _ in range(300):
        more = dice.randrange(dice.choice((10, 3_000)))
        held.grow(tail - head + more, head, tail)
        whole, small, rows, none = held.arrays
        for sequence in range(tail, tail + more):
            place = sequence % held.capacity
            whole[place], small[place], rows[place] = sequence, sequence % 251, -sequence % 1000
            queue.append(sequence)
        tail += more
        fewer = dice.randrange(min(len(queue), dice.choice((10, 4_000))) + 1)
        for _ in range(fewer):
            queue.popleft()
        head += fewer
        held.release(head, tail)
        expected = np.array(queue, np.int64)
        places = expected % held.capacity
        assert (whole[places] == expected).all(), f"seed {seed}"
        assert (small[places] == expected % 251).all(), f"seed {seed}"
        assert (rows[places] == (-expected % 1000)[:, None]).all(), f"seed {seed}"
        assert none.shape == (held.capacity, 0)


def test_the_memory_of_a_ring_buffer_follows_its_elements() -> None:
    held, process = Ring(1024, Column(np.uint8, 256)), psutil.Process()
    start, most = process.memory_info().rss, 0
    elements = (96 << 20) // 256
    tail = 0
    while tail < elements:
        held.grow(tail + 1024, 0, tail)
        at = tail % held.capacity
        held.arrays[0][at : at + 1024] = 1
        tail += 1024
        most = max(most, process.memory_info().rss - start)
    assert held.capacity * 256 == 128 << 20
    assert most < 104 << 20
    assert held.held_bytes(tail) == 96 << 20
    held.release(tail, tail)
    assert process.memory_info().rss - start < 8 << 20
    assert held.held_bytes(tail) == 0
