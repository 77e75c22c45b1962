"""Ends the process when a Kafka call hangs that should have returned long ago.

librdkafka can hang in a call whatever its timeout is: `send_offsets_to_transaction` was measured to
return 600 s after its broker was killed (librdkafka issues 5456 and 5511). Python runs no signal
handler in that time, so SIGTERM does nothing. No thread can interrupt such a call. But a headrace
process may die at any line, so ending it is safe, and its supervisor starts it again. Exit status
75 means that a server was not reachable.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.runtime.termination import UNREACHABLE

log = logging.getLogger(__name__)

STOP_GRACE_S = 15.0
"""From the signal to the end of the process, in any call: a transaction takes 10 s."""
MARGIN_S = 5.0
"""A call that takes this much longer than its timeout hangs."""
_LOOK_S = 0.2


def end_process(doing: str) -> None:
    """Log where every thread is, and end the process at once, without any clean-up."""
    log.error("%s hangs: this process ends now, so that it can be started again", doing)
    faulthandler.dump_traceback(sys.stderr)
    sys.stderr.flush()
    os._exit(UNREACHABLE)


class Watchdog:
    """Watches the calls of one thread from another, which ends with the process."""

    def __init__(self, stop: threading.Event, expired: Callable[[str], None] = end_process) -> None:
        """`expired` is called once for a call that takes too long, or too long after `stop`."""
        self._stop, self._expired = stop, expired
        self._call: tuple[str, float] | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def guard(self, doing: str, limit_s: float) -> Iterator[None]:
        """Call `expired` if the block takes longer than `limit_s`. Not reentrant."""
        if self._thread is None:  # a process that guards nothing needs no thread
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        self._call = (doing, time.monotonic() + limit_s)
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        expired: tuple[str, float] | None = None
        stopped_s = float("inf")
        while True:
            time.sleep(_LOOK_S)
            call, now = self._call, time.monotonic()
            if self._stop.is_set():
                stopped_s = min(stopped_s, now)
            if call is None or call is expired:
                continue
            if now > min(call[1], stopped_s + STOP_GRACE_S):
                self._expired(call[0])
                expired = call
