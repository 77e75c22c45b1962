"""A thread beside a process's main work, with a start and a stop, or one that repeats its work.

The thread is a daemon: a process that ends without `stop` does not wait for it. `stop` before
`start` is allowed, because a process that fails while it starts stops all of its parts.
"""

import threading
from collections.abc import Callable
from typing import Self


class BackgroundThread:
    """Runs a function in a thread from `start` until `stop`, or until it returns.

    As a context manager, it runs until the block ends.
    """

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

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class RepeatingThread(BackgroundThread):
    """Calls a function every `every_s` seconds, for the first time after `first_s`."""

    def __init__(
        self,
        act: Callable[[], object],
        every_s: float,
        name: str,
        *,
        first_s: float | None = None,
        join_s: float | None = None,
    ) -> None:
        """first_s: None: `every_s`. join_s: see BackgroundThread."""
        super().__init__(self._repeat, name, join_s)
        self._act, self._every_s = act, every_s
        self._wait_s = every_s if first_s is None else first_s

    def _repeat(self) -> None:
        while not self._ended.wait(self._wait_s):
            self._act()
            self._wait_s = self._every_s
