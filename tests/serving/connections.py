"""Connections to the server's protocols, in memory."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.server import ServerState

from headrace.serving.requests.limits import RequestLimits
from tests.serving.app_client import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.ingest.http.server import SingleWriteProtocol
    from tests.serving.served_models import Serving


TOKEN = "a-token-of-this-test"


def posted(path: str, body: bytes, *lines: str, version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: server", f"Authorization: Bearer {TOKEN}", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


@functools.cache
def configured(kind: type[SingleWriteProtocol], serving: Serving) -> uvicorn.Config:
    made = uvicorn.Config(serving.app, http=kind, proxy_headers=False, ws="none", log_config=None)
    made.load()
    return made


class Connection(asyncio.Transport):
    """A client's connection, as a protocol sees it."""

    def __init__(self, kind: type[SingleWriteProtocol], serving: Serving) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        config = configured(kind, serving)  # type: ignore[arg-type]
        self.told, self.closed, self.paused = b"", False, False
        self.state = ServerState()
        self.protocol = kind(config, self.state, {}, asyncio.get_running_loop())
        self.protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.told += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    async def send(self, pieces: Sequence[bytes]) -> None:
        """Send the pieces one after the other, each once the protocol reads."""
        for piece in pieces:
            await until(lambda: self.closed or not self.paused)
            if not self.closed:
                self.protocol.data_received(piece)
            await asyncio.sleep(0)

    async def answered(self) -> bytes:
        """Return all responses once the last request is answered."""
        protocol = self.protocol
        await until(
            lambda: self.closed or (protocol.cycle.response_complete and not protocol.pipeline)
        )
        await asyncio.sleep(0)  # the transport sends in the next turn of the loop
        protocol.connection_lost(None)
        await until(lambda: not self.state.tasks)
        return self.told


async def until(true: Callable[[], object]) -> None:
    deadline, turns = time.monotonic() + 60.0, 0
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        turns += 1
        await asyncio.sleep(0 if turns < 100 else 0.001)  # the computing thread needs a turn


def serving(**limits: Any) -> Serving:
    made, _ = complete(limits=RequestLimits(body_bytes=4_000, **limits), tokens=[TOKEN])
    return made
