"""Counts what an error keeps in memory of the frames that it passed.

Processes collect garbage seldom (`rare_collections`), so a cycle of an error and a frame stays. A
frame also keeps the frames of its callers. The collector is therefore off while a test counts.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

OUTAGES = 3


class Held:
    """Memory that a caller holds while a server is away."""


@contextmanager
def collector_off() -> Iterator[None]:
    """Collect no garbage in this block."""
    gc.freeze()  # the millions of objects of modules, which each collection would visit
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def kept_after(failing: Callable[[], Any], error: type[Exception]) -> int:
    """Return how many callers of a function that raises `error` have their memory still."""
    held: list[weakref.ref[Held]] = []

    def call() -> None:
        own = Held()
        held.append(weakref.ref(own))
        failing()

    for _ in range(OUTAGES):
        with pytest.raises(error):
            call()
    return sum(own() is not None for own in held)
