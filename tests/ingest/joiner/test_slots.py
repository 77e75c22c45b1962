"""Tests that the hash index of a ring finds its elements and no others, after any history."""

import random

import numpy as np
import pytest
from numba import njit

from headrace.ingest.joiner.core import hash_index as parts
from headrace.ingest.joiner.core.hash_index import NOWHERE, slots_for, too_full
from tests.effort import seeds

find_slot, find_place, put_in, clear_slot = (
    njit(part.py_func)
    for part in (parts.find_slot, parts.find_place, parts.put_in, parts.clear_slot)
)


@pytest.mark.parametrize("seed", seeds(6))
def test_a_hash_index_finds_what_a_dictionary_finds(seed: int) -> None:
    dice = random.Random(seed)
    capacity = dice.choice((16, 256, 1024))
    hashes = np.zeros(capacity, np.uint64)
    slots = slots_for(capacity * 3 // 4)
    held: dict[int, int] = {}
    # few bits of each half: homes and tags collide
    drawn = [dice.getrandbits(3) << 61 | dice.getrandbits(12) << 20 for _ in range(3 * capacity)]
    for _ in range(20_000):
        wanted = dice.choice(drawn)
        slot = find_slot(slots, hashes, np.uint64(wanted))
        if wanted in held:
            if dice.random() < 0.5:
                clear_slot(slots, hashes, slot)
                hashes[held.pop(wanted)] = 0
        elif len(held) < capacity * 3 // 4:
            place = dice.choice(sorted(set(range(capacity)) - set(held.values()) - {0}))
            hashes[place] = wanted
            put_in(slots, hashes, slot, place)
            held[wanted] = place
        looked_up = dice.choice(drawn)
        found = find_place(slots, hashes, np.uint64(looked_up))
        assert found == held.get(looked_up, NOWHERE), f"seed {seed}"
    assert sum(find_place(slots, hashes, np.uint64(w)) != NOWHERE for w in set(drawn)) == len(held)


def test_no_hash_makes_a_slot_look_empty() -> None:
    hashes = np.zeros(4, np.uint64)
    slots = slots_for(3)
    hashes[3] = np.uint64(0xFFFFFFFF_FFFFFFFF)
    put_in(slots, hashes, find_slot(slots, hashes, hashes[3]), 3)
    assert find_place(slots, hashes, hashes[3]) == 3


def test_slots_are_at_most_three_quarters_full() -> None:
    slots = slots_for(1_000)
    assert not too_full(slots, 1_000)
    assert too_full(slots, slots.shape[0])
    assert slots.nbytes < 7 * 1_000
