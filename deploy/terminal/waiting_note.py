"""Says what a command waits for, if it takes longer than a few seconds."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FIRST_S, _EVERY_S = 5.0, 10.0
"""A command on an idle machine ends before the first note."""


def _to_stderr(note: str) -> None:
    print(note, file=sys.stderr, flush=True)


@contextmanager
def waiting_for(
    what: str,
    say: Callable[[str], object] = _to_stderr,
    first_s: float = _FIRST_S,
    every_s: float = _EVERY_S,
) -> Iterator[None]:
    """Say that the command waits for `what`, again and again until the block ends."""
    done, begun_s = threading.Event(), time.monotonic()

    def note() -> None:
        wait_s = first_s
        while not done.wait(wait_s):
            say(f"waiting for {what}, {time.monotonic() - begun_s:.0f} s so far")
            wait_s = every_s

    thread = threading.Thread(target=note, name="waiting note", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
