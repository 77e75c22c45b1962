"""The two clocks of a process: the wall's, which events are dated by, and one that only goes on."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return the milliseconds since 1970, as the machine has them."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Return the milliseconds of a clock that never goes back, for what is waited for."""
    return time.monotonic_ns() // 1_000_000
