"""Waiting for a condition with a deadline: what every part of the stack does after a launch.

A process is ready when it says so, never after a fixed pause. While waiting, `alive` is asked too,
so that a process that dies at once is reported at once and not when the deadline has passed.
"""

import time
from collections.abc import Callable

POLL_S = 0.02  # short beside any start-up here (0.1 to 5 s), and next to no load


def wait_until(
    ready: Callable[[], bool],
    timeout_s: float,
    alive: Callable[[], bool] = lambda: True,
) -> bool:
    """True as soon as `ready()`; False once `alive()` is not, or when `timeout_s` have passed."""
    deadline = time.monotonic() + timeout_s
    while True:
        if ready():
            return True
        if not alive() or time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
