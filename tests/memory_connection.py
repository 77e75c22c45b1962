"""A client's connection to a server's protocol, in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from headrace.runtime.http.server import SingleWriteProtocol


class MemoryConnection(asyncio.Transport):
    """The transport that a protocol gets. `received` is all that the client received."""

    def __init__(
        self,
        kind: type[SingleWriteProtocol],
        config: uvicorn.Config,
        state: ServerState | None = None,
    ) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.received, self.closed, self.paused = b"", False, False
        self.state = state or ServerState()
        self.protocol = kind(config, self.state, {}, asyncio.get_running_loop())
        self.protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.received += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    async def send(self, *pieces: bytes) -> None:
        """Send the pieces, each once the server reads, until it closes."""
        for piece in pieces:
            await until(lambda: self.closed or not self.paused)
            if not self.closed:
                self.protocol.data_received(piece)
            await asyncio.sleep(0)

    async def received_once(self, complete: Callable[[], object]) -> bytes:
        """Return the received bytes once they are complete, or the connection is closed."""
        await until(lambda: self.closed or complete())
        await asyncio.sleep(0)  # the transport sends in the next turn of the loop
        self.protocol.connection_lost(None)
        await until(lambda: not self.state.tasks)
        return self.received


async def until(true: Callable[[], object]) -> None:
    """Wait for a condition."""
    deadline, turns = time.monotonic() + 60.0, 0
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        turns += 1
        await asyncio.sleep(0 if turns < 100 else 0.001)  # a computing thread needs a turn
