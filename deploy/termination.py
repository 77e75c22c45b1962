"""Turns SIGTERM and Ctrl-C into an event, and defines the exit statuses of commands.

A process checks the event between two steps, so that it ends with its work in good order.
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
    """Yield an event that the first SIGTERM or SIGINT sets. A second one ends the process."""
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
"""Exit status: an operator must fix something. Invalid options give the same."""


UNREACHABLE = 75
"""Exit status: Kafka or the store is unreachable. A later start may work (EX_TEMPFAIL)."""
