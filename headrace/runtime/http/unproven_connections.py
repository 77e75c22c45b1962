"""Bounds the event loop's time for connections that no request has proven yet.

A thousand connections, each within its limits, can become readable in one turn of the event loop.
If all were read and parsed in that turn, a client with a token would wait for tens of milliseconds.
A connection is therefore unproven until a POST on it is answered with success, which needs a token
where the server has tokens. Unproven connections share a budget of time in each turn. Those beyond
it wait in the order of their bytes, and are not read meanwhile: bytes that wait in the system
cost neither memory nor time of this process. Proven connections never wait.

The time of failed connections has a second bound, a share of the clock's. A server that refuses
requests all the time is never idle, so the system's scheduler would let it wait behind other
processes, and its other clients with it. Time that a connection took before it was proven is given
back: clients that open a connection for each request share no bound.

Without an attack, a new connection finds an empty queue, so its first request does not wait.

*Refused:* a limit for each address. Behind a proxy, all clients have the same address.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

BUDGET_S = 0.0002
"""Time in one turn of the event loop: two to four heads. A prediction takes about as long."""
SHARE = 0.25
"""Time for connections that are not proven afterwards, of the time that passes."""
BURST_S = 0.1
"""Time for them at once, after a quiet time."""
CONNECTION_S = 0.00015
"""Assumed of accepting a connection and closing it."""
BYTE_S = 0.5e-9
"""Assumed of copying a byte from the system."""
READING_S = 0.00005
"""Assumed of a connection that is read again, until its bytes are there."""
ANSWER_S = 0.0005
"""Assumed of a request that the application answers: it runs later, between other requests."""
_TIMER_S = 0.001
"""Resolution of the event loop's timers."""
MOST_HELD_BYTES = 8 * 1024 * 1024
"""Received but not parsed, over all unproven connections. Beyond it, bytes are parsed at once."""


class Unproven(Protocol):
    """A connection as the queue needs it."""

    def take_turn(self, data: bytes) -> None:
        """Process these bytes, or read on if they are empty, and spend the time that it takes."""


class UnprovenQueue:
    """The unproven connections of one server, whose bytes wait for a turn."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._loop, self._now_s = loop, now_s
        self._waiting: deque[tuple[Unproven, bytes]] = deque()
        self._held_bytes = 0
        self._left_s, self._renewing = BUDGET_S, False
        self._credit_s, self._credited_s = BURST_S, now_s()

    @property
    def busy(self) -> bool:
        """Whether connections wait."""
        return bool(self._waiting)

    @property
    def exhausted(self) -> bool:
        """Whether a connection that is read now would take time from those that wait."""
        return self.busy or self._credit() <= 0.0

    @property
    def has_time(self) -> bool:
        """Whether a connection may go on in this turn of the loop."""
        return self._left_s > 0.0 and self._credit() > 0.0

    def admits(self, size: int) -> bool:
        """Return whether bytes of this size may be processed in this turn of the loop."""
        if self._held_bytes + size > MOST_HELD_BYTES:
            return True
        return not self._waiting and self.has_time

    def wait(self, connection: Unproven, data: bytes = b"", *, again: bool = False) -> None:
        """Queue bytes of a connection, or without any its wish to be read; it is paused.

        again: put it first, because it waited before it was read.
        """
        (self._waiting.appendleft if again else self._waiting.append)((connection, data))
        self._held_bytes += len(data)
        self._renew_soon()

    def spend(self, seconds: float) -> None:
        """Subtract the time that processing took, from this turn's budget and from the share."""
        self._left_s -= seconds
        self._credit_s -= seconds
        self._renew_soon()

    def refund(self, seconds: float) -> None:
        """Give time back that a connection took before it was proven."""
        self._credit_s = min(BURST_S, self._credit_s + seconds)

    def _credit(self) -> float:
        """Return the rest of the share, in seconds; negative if too much was spent."""
        now_s = self._now_s()
        earned_s = SHARE * (now_s - self._credited_s)
        self._credit_s, self._credited_s = min(BURST_S, self._credit_s + earned_s), now_s
        return self._credit_s

    def _renew_soon(self) -> None:
        if self._renewing:
            return
        self._renewing = True
        if self._waiting and (credit_s := self._credit()) <= 0.0:
            self._loop.call_later(max(_TIMER_S, -credit_s / SHARE), self._renew)
        else:
            self._loop.call_soon(self._renew)

    def _renew(self) -> None:
        """Begin a turn: let connections process their bytes within the budget."""
        self._renewing, self._left_s = False, BUDGET_S
        while self._waiting and self.has_time:
            connection, data = self._waiting.popleft()
            self._held_bytes -= len(data)
            connection.take_turn(data)
        if self._waiting:
            self._renew_soon()
