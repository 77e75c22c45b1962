"""Says what a command waits for, if it takes longer than a few seconds."""

import sys
import time
from collections.abc import Callable

from headrace.runtime.background_thread import RepeatingThread

_FIRST_S, _EVERY_S = 5.0, 10.0
"""A command on an idle machine ends before the first note."""


def _to_stderr(note: str) -> None:
    print(note, file=sys.stderr, flush=True)


def waiting_for(
    what: str,
    say: Callable[[str], object] = _to_stderr,
    first_s: float = _FIRST_S,
    every_s: float = _EVERY_S,
) -> RepeatingThread:
    """Return a thread that says, again and again, that the command waits for `what`."""
    begun_s = time.monotonic()

    def note() -> None:
        say(f"waiting for {what}, {time.monotonic() - begun_s:.0f} s so far")

    return RepeatingThread(note, every_s, "waiting note", first_s=first_s)
