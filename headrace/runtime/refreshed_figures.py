"""Asks servers for the figures of a process, in one thread, so that no scrape waits for a server.

A figure that only a server knows (the end of a topic, the memory of Redis) is asked every two
seconds, and a scrape gets the last answer. *Refused:* asking during a scrape. While a server hangs,
or a client is in use by another thread, each scrape would leave a thread that waits.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from headrace.runtime.background_thread import RepeatingThread

log = logging.getLogger(__name__)

EVERY_S = 2.0
_GOODBYE_S = 1.0
"""Time that a process that stops waits for an answer that is under way."""


@runtime_checkable
class Refreshed(Protocol):
    """A collector with figures of a server."""

    def refresh(self) -> None:
        """Ask the server. Failures are figures, too: they make a metric absent."""


@contextmanager
def refreshed_figures(collectors: Sequence[object], every_s: float = EVERY_S) -> Iterator[None]:
    """Refresh those collectors that need it from a thread, until the block ends."""
    asking = [each for each in collectors if isinstance(each, Refreshed)]
    if not asking:
        yield
        return

    def refresh() -> None:
        for each in asking:
            try:
                each.refresh()
            except Exception as error:  # noqa: BLE001 - metrics must not end the process
                log.warning("metrics: %s: %s", type(error).__name__, error)

    with RepeatingThread(refresh, every_s, "figures", first_s=0.0, join_s=_GOODBYE_S):
        yield
