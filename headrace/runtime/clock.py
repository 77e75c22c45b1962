"""The two clocks of a process: wall time, which dates events, and monotonic time for waiting."""

import time


def wall_ms() -> int:
    """Return wall time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Return monotonic time in milliseconds, for timeouts and pauses."""
    return time.monotonic_ns() // 1_000_000
