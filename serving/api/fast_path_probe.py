"""Checks at startup that the fast path works with the installed uvicorn, and disables it if not.

`fast_path` depends on internals of uvicorn. The packaging pins the minor version, but an operator
can override a pin. A change of internals might hang connections instead of raising an error.
`choose_protocol` therefore answers two requests on a connection in memory, one on the fast path and
one handed over to uvicorn. If an answer is wrong or late, the server runs on `BoundedProtocol`,
without a fast path, and logs a warning. A comparison of versions would refuse harmless updates.
"""

import asyncio
import logging
from typing import Any

import uvicorn
from fastapi import Response
from uvicorn.server import ServerState

from headrace.runtime.http.bounded_protocol import BoundedProtocol
from headrace.runtime.http.server import SingleWriteProtocol
from headrace.serving.api.app import Ask
from headrace.serving.api.fast_path import FastPathProtocol
from headrace.serving.api.load_shedding import BodySource, WholeRequest

log = logging.getLogger(__name__)

_REQUEST = b"POST /probe HTTP/1.1\r\nHost: probe\r\nContent-Length: 4\r\n\r\nping"
_BODY = {"fast path": b"fast ping", "uvicorn": b"asgi ping"}
_TURNS = 50
"""Turns of the event loop within which an answer must come. It needs three."""
_PROBE_S = 10.0
"""Longest time of the whole probe, which takes about a millisecond."""


def choose_protocol(
    fast: type[SingleWriteProtocol] = FastPathProtocol,
) -> type[BoundedProtocol]:
    """Return `fast` if it works with the installed uvicorn, else the protocol without it."""
    try:
        failure = asyncio.run(asyncio.wait_for(_probe(fast), _PROBE_S))
    except Exception as error:  # noqa: BLE001 - unknown internals fail in unknown ways
        failure = f"{type(error).__name__}: {error}"
    if not failure:
        return fast
    log.warning(
        "the fast path does not work with uvicorn %s (%s): all requests go through ASGI, which"
        " costs throughput; install the version that headrace pins",
        uvicorn.__version__,
        failure,
    )
    return BoundedProtocol


class _ProbeApp:
    """Answers by ASGI; `handler_at` offers a handler for the fast path."""

    def handler_at(self, _: bytes) -> tuple[Ask, str]:
        return self.answer, "probe"

    async def answer(self, request: BodySource | WholeRequest, _: str) -> Response:
        await asyncio.sleep(0)
        return Response(b"fast " + request.body)  # type: ignore[union-attr]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        await Response(b"asgi " + body)(scope, receive, send)


class _ProbeTransport(asyncio.Transport):
    """Keeps what a protocol writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def _probe(fast: type[SingleWriteProtocol]) -> str:
    """Return the first difference from the expected answers; empty if there is no difference."""
    app: Any = _ProbeApp()
    config = uvicorn.Config(app, http=fast, ws="none", lifespan="off", log_config=None)
    state = ServerState()
    protocol = fast(config, state, {}, asyncio.get_running_loop())
    transport = _ProbeTransport()
    protocol.connection_made(transport)
    pieces = {"fast path": [_REQUEST], "uvicorn": [_REQUEST[:-1], _REQUEST[-1:]]}
    try:
        for way, parts in pieces.items():
            transport.written = b""
            for part in parts:
                protocol.data_received(part)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            expected, written = _BODY[way], transport.written
            if not written.startswith(b"HTTP/1.1 200 OK\r\n") or not written.endswith(expected):
                return f"{way}: expected 200 and {expected!r}, got {written!r}"
            if not protocol.cycle.response_complete:
                return f"{way}: the request is still open after its answer"
    finally:
        protocol.connection_lost(None)
        await asyncio.gather(*state.tasks)
    return ""
