"""Counts how many recent events or candidates have a usable value for each field.

The counts cover the last ten minutes, in slots of two minutes. A count over the whole life of a
process would hide for days that a producer stopped sending a field. Counts of several processes
add up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

SLOT_MS = 120_000
SLOTS = 5


class CoverageCounts(NamedTuple):
    """Recent counts."""

    total: int
    """Events or candidates."""
    usable: Mapping[str, int]
    """Those of them with a usable value, by field."""

    @property
    def missing(self) -> list[str]:
        """Fields without any usable value."""
        return [name for name, count in self.usable.items() if not count]

    def share(self, name: str) -> float | None:
        """Return the share with a usable value, from 0 to 1; None without events."""
        return self.usable[name] / self.total if self.total else None


class RecentCoverage:
    """Recent counts of some fields. One thread adds, and any thread reads."""

    def __init__(self, names: Sequence[str], now_ms: Callable[[], int]) -> None:
        self._names, self._now_ms = tuple(names), now_ms
        self._slots = np.zeros((SLOTS, 1 + len(self._names)), np.int64)
        self._numbers = np.full(SLOTS, -SLOTS, np.int64)
        """By slot: the number of its two minutes."""

    def add(self, total: int, usable: Sequence[int]) -> None:
        """Count some events, and how many of them have a usable value for each field."""
        number = self._now_ms() // SLOT_MS
        slot = number % SLOTS
        if self._numbers[slot] != number:
            self._slots[slot] = 0
            self._numbers[slot] = number
        self._slots[slot] += (total, *usable)

    def recent(self) -> CoverageCounts:
        """Return the counts of the last ten minutes."""
        number = self._now_ms() // SLOT_MS
        total, *usable = self._slots[self._numbers > number - SLOTS].sum(axis=0).tolist()
        return CoverageCounts(total, dict(zip(self._names, usable, strict=True)))
