"""A thread beside a process's main work, with a start and a stop.

The thread is a daemon: a process that ends without `stop` does not wait for it. `stop` before
`start` is allowed, because a process that fails while it starts stops all of its parts.
"""

import threading
from collections.abc import Callable


class BackgroundThread:
    """Runs a function in a thread from `start` until `stop`, or until it returns."""

    def __init__(self, run: Callable[[], None], name: str, join_s: float | None = None) -> None:
        """Begin without the thread.

        run: ends soon after `_ended` is set. join_s: how long `stop` waits for that; None: as long
        as it takes.
        """
        self._ended = threading.Event()
        self._join_s = join_s
        self._thread = threading.Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self._join_s)
