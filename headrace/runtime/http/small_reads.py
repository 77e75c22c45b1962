"""Reads little at once from connections that no request has proven yet.

uvloop reads up to 256 kB of a connection at once, and its first bytes even if the protocol paused
reading in `connection_made`: it begins to read afterwards. So a thousand clients that send
endlessly could make a server copy and parse megabytes in one turn of its event loop. A buffered
protocol offers the memory to read into, and thereby decides how much.

uvicorn's protocol is not a buffered one. `SmallReads` is, and passes the bytes on.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.runtime.http.bounded_protocol import BoundedProtocol

PROVEN_BYTES = 262_144
"""Read at once of a connection that is proven."""
UNPROVEN_BYTES = 8_192
"""Read at once of any other: the head and the body of most requests."""


class _Memory(threading.local):
    """The memory that all connections of a thread, and so of an event loop, read into."""

    def __init__(self) -> None:
        self.proven = memoryview(bytearray(PROVEN_BYTES))
        self.unproven = self.proven[:UNPROVEN_BYTES]


_MEMORY = _Memory()


class SmallReads(asyncio.BufferedProtocol):
    """Passes what a connection brings on to `protocol`."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self._protocol, memory = protocol, _MEMORY
        self._proven, self._unproven = memory.proven, memory.unproven
        self.connection_made = protocol.connection_made  # type: ignore[assignment, method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, _sizehint: int) -> Any:
        """Return the memory to read into; an event loop asks anew before each read."""
        return self._proven if self._protocol.proven else self._unproven

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the bytes that were read; the next read overwrites the memory."""
        self._protocol.data_received(bytes(self._proven[:nbytes]))
