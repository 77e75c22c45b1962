"""SIGTERM and Ctrl-C become an event that a process looks at between two steps.

What a command's exit status says to whoever started it, a person or a supervisor.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that is set by the first SIGTERM or SIGINT. A second one ends the process."""
    stop = threading.Event()
    handled = (signal.SIGTERM, signal.SIGINT)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        for number, former in before.items():
            signal.signal(number, former)

    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield stop
    finally:
        for number, former in before.items():
            signal.signal(number, former)


REFUSED = 2
"""A person must put something right. A wrong option gives the same."""


UNREACHABLE = 75
"""Kafka or the store is not there: started again later, it may work (EX_TEMPFAIL, sysexits.h)."""
