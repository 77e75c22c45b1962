"""Turns SIGTERM and Ctrl-C into an event, and defines the exit statuses of commands.

A process checks the event between two steps, so that it ends with its work in good order.
"""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stopped_by_signals(answer: str = "") -> Iterator[threading.Event]:
    """Yield an event that the first SIGTERM or SIGINT sets. A second one ends the process.

    answer: written to standard error at the first one, where stopping takes seconds.
    """
    stop = threading.Event()
    handled = (signal.SIGTERM, signal.SIGINT)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        if answer:
            # not print: the signal may have come within one
            os.write(2, f"\n{answer}\n".encode())
        for number, former in before.items():
            signal.signal(number, former)

    before = {number: signal.signal(number, on_signal) for number in handled}
    try:
        yield stop
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def stopped_while_calls_hang(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at SIGTERM or SIGINT even while the main thread hangs in a call.

    Python runs signal handlers between two steps of the main thread only. But it writes the number
    of a signal to a socket at once, and a thread of its own reads it there. Not for processes with
    an event loop, which needs that socket itself.
    """
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)

    def watch() -> None:
        handled = {signal.SIGTERM, signal.SIGINT}
        while numbers := reading.recv(16):
            if handled.intersection(numbers):
                stop.set()

    watching = threading.Thread(target=watch, name="signals", daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        writing.close()
        watching.join()
        reading.close()


INTERRUPTED = 130
"""Exit status: a signal came before the result was there. Shells use it for SIGINT."""


REFUSED = 2
"""Exit status: an operator must fix something. Invalid options give the same."""


UNREACHABLE = 75
"""Exit status: Kafka or the store is unreachable. A later start may work (EX_TEMPFAIL)."""
