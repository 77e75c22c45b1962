"""Waits for a condition with a deadline.

A process is ready when a check succeeds, never after a fixed pause. The wait also checks `alive`,
so that a process that dies at once is reported at once and not at the deadline.
"""

import time
from collections.abc import Callable

POLL_S = 0.02  # short beside a start (0.1 to 5 s), with almost no load


def wait_until(
    ready: Callable[[], bool],
    timeout_s: float,
    alive: Callable[[], bool] = lambda: True,
) -> bool:
    """Return True once `ready()`, False once not `alive()` or after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        if ready():
            return True
        if not alive() or time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
