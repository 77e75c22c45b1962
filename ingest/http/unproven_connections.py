"""Bounds the event loop's time for connections that no request has proven yet.

A thousand connections, each within its limits, can become readable in one turn of the event loop.
If all were read and parsed in that turn, a client with a token would wait for tens of milliseconds.
A connection is therefore unproven until a POST on it is answered with success, which needs a token
where the server has tokens. Unproven connections share a budget of time in each turn. Those beyond
it wait in the order of their bytes, and are not read meanwhile. Proven connections never wait.

Without an attack, a new connection finds an empty queue, so its first request does not wait.

*Refused:* a limit for each address. Behind a proxy, all clients have the same address.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

BUDGET_S = 0.0002
"""Time in one turn of the event loop: two to four heads. A prediction takes about as long."""
MOST_HELD_BYTES = 8 * 1024 * 1024
"""Received but not parsed, over all unproven connections. Beyond it, bytes are parsed at once."""


class Unproven(Protocol):
    """A connection as the queue needs it."""

    def hold(self) -> None:
        """Stop reading: its bytes are in the queue."""

    def take_turn(self, data: bytes) -> None:
        """Read again, and process these bytes: the next ones of the connection."""


class UnprovenQueue:
    """The unproven connections of one server, whose bytes wait for a turn."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop, self._now_s = loop, now_s
        self._waiting: deque[tuple[Unproven, bytes]] = deque()
        self._held_bytes = 0
        self._left_s, self._renewing = BUDGET_S, False

    @property
    def busy(self) -> bool:
        """Whether connections wait."""
        return bool(self._waiting)

    def admits(self, size: int) -> bool:
        """Return whether bytes of this size may be processed in this turn of the loop."""
        if self._held_bytes + size > MOST_HELD_BYTES:
            return True
        return not self._waiting and self._left_s > 0.0

    def wait(self, connection: Unproven, data: bytes = b"") -> None:
        """Queue these bytes, or without any a connection that is not to be read yet."""
        connection.hold()
        self._waiting.append((connection, data))
        self._held_bytes += len(data)
        self._renew_soon()

    def spend(self, seconds: float) -> None:
        """Subtract the time that processing took from this turn's budget."""
        self._left_s -= seconds
        self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._renewing:
            self._renewing = True
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        """Begin a turn: let connections process their bytes within the budget."""
        self._renewing, self._left_s = False, BUDGET_S
        while self._waiting and self._left_s > 0.0:
            connection, data = self._waiting.popleft()
            self._held_bytes -= len(data)
            began_s = self._now_s()
            connection.take_turn(data)
            self.spend(self._now_s() - began_s)
        if self._waiting:
            self._renew_soon()
