"""A store in memory with an empty model."""

import itertools
import random

from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.store import Shape
from tests.pserver.rows.entries import WIDTH

BUCKETS = 2


SHAPE = Shape("m", BUCKETS, WIDTH, "fingerprint", "spec")


def new_store() -> MemoryStore:
    dice = random.Random(0)
    ticks = itertools.count()
    store = MemoryStore(clock_ms=lambda: next(ticks), nonces=lambda: dice.randbytes(8))
    store.create(SHAPE)
    return store
