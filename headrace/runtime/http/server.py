"""Runs an ASGI application on a socket until it is stopped, and drains it.

A server that is asked to stop reports at once that it is not ready. It keeps answering for
`drain_ms`, so that load balancers notice. Then it accepts no more connections, finishes the
requests under way, and ends.

uvicorn and httptools parse HTTP. Two of their internals are replaced, for speed: an answer leaves
in one write, and a connection keeps one idle timer. See `SingleWriteProtocol`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from asyncio import TimerHandle
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.bounded_protocol import BoundedProtocol
from headrace.runtime.http.http_errors import AddressTaken, BadTokens
from headrace.runtime.http.local_senders import is_this_machine
from headrace.runtime.http.small_reads import SmallReads

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Receive, Scope, Send

_STOP_POLL_S = 0.05
_STATUS_LINE = b"HTTP/1.1 "
_BACKLOG = 2048
"""Connections that may wait to be accepted; the system's own limit still holds."""
_KEEP_ALIVE_S = 75
"""Longer than load balancers keep idle connections: they close first. A server that closes first
loses the request that arrives at that moment."""


class Readiness:
    """Whether a server accepts requests. A server that stops withdraws its readiness first."""

    def __init__(self) -> None:
        self.leaving = False


@dataclass(frozen=True, slots=True)
class Draining:
    """The way a server stops."""

    stop: threading.Event
    readiness: Readiness
    broken: Callable[[], bool]
    """Whether the server cannot go on; it then stops without draining."""
    drain_ms: int
    """Time to answer after readiness ends: longer than a load balancer's probe interval."""
    finish_s: int
    """Time for requests under way to finish."""


def run_app(
    app: FastAPI,
    listener: socket.socket,
    leaving: Draining,
    background: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
    protocol: type[BoundedProtocol] | None = None,
    *,
    local_only: bool = False,
) -> None:
    """Serve `app` on `listener` until `leaving.stop` is set.

    background: coroutines that run on the same event loop meanwhile; an error of one ends the
    server and is raised here. protocol: the class of each connection; None: SingleWriteProtocol.
    local_only: whether to refuse what pages of other sites send (`local_senders`).
    """
    kind = protocol or SingleWriteProtocol

    def connection(**about: Any) -> SmallReads:
        connection = kind(**about)
        connection.local_only = local_only
        return SmallReads(connection)

    server = _Server(
        uvicorn.Config(
            HeadAsGet(app),
            interface="asgi3",
            loop="none",  # the runner below makes the loop
            http=connection,  # type: ignore[arg-type]
            proxy_headers=False,  # no route reads the address of the client
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=leaving.finish_s,
        )
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(server, listener, leaving, background))


class HeadAsGet:
    """Answers HEAD as GET, as load balancers and monitors ask; uvicorn leaves out the body.

    FastAPI's routes for GET refuse HEAD.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the application, which the protocol of the fast path asks for."""
        return getattr(self._app, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class SingleWriteProtocol(BoundedProtocol):
    """uvicorn's protocol, with one write for each answer and one idle timer for each connection.

    Each write is a system call, the most expensive part of a short answer: uvicorn writes the head
    and the body apart. uvicorn also sets an idle timer after each answer and cancels it at the next
    request. Here the timer runs out, and then checks whether a request came meanwhile.

    This overrides `_unset_keepalive_if_required` and reads attributes of uvicorn that are not
    documented, so pyproject.toml pins uvicorn and httptools to a minor version.
    """

    _idle_since: float | None = None
    """Event loop time of the end of the last answer; None during a request."""
    _idle_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(BatchingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_idle_timer()  # a connection that never sends anything is idle, too

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def on_response_complete(self) -> None:
        if not self.proven:
            self._prove()
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._start_idle_timer()

    def _prove(self) -> None:
        """Note whether the answer that is complete was one of success to a POST."""
        cycle, transport = self.cycle, self.transport
        scope = getattr(cycle, "scope", None)  # the fast path has none, and proves by itself
        if scope is None or not cycle.response_complete or self.pipeline:
            return
        if scope["method"] == "POST" and getattr(transport, "succeeded", False):
            self.prove()

    def _start_idle_timer(self) -> None:
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _check_idle(self) -> None:
        """Close the connection if it was idle for too long."""
        self._idle_timer = None
        if self._idle_since is None:
            return  # the end of the next answer sets the timer
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._check_idle)
        else:
            self.timeout_keep_alive_handler()


class BatchingTransport:
    """A transport that joins the writes of one turn of the event loop into one."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self.succeeded = False
        """Whether the last head that was written has a status of 2xx."""
        self.is_closing = transport.is_closing  # called often: skips __getattr__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send these bytes at the end of this turn of the event loop."""
        if data.startswith(_STATUS_LINE):
            self.succeeded = data.startswith(b"2", len(_STATUS_LINE))
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def send(self, data: bytes) -> None:
        """Send these bytes now, after all earlier writes."""
        if self._parts:
            self._parts.append(data)
            self._send()
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send the earlier writes, then close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():  # the client may have gone meanwhile
            self._transport.write(b"".join(parts))


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the command line has its own, and sets `stop`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    leaving: Draining,
    background: Sequence[Callable[[], Coroutine[None, None, None]]],
) -> None:
    following = [asyncio.create_task(run()) for run in background]

    def broken() -> bool:
        return leaving.broken() or any(task.done() for task in following)

    async def leave() -> None:
        # polled: a threading.Event cannot wake an event loop
        while not leaving.stop.is_set() and not broken():
            await asyncio.sleep(_STOP_POLL_S)
        leaving.readiness.leaving = True
        if not broken():
            await asyncio.sleep(leaving.drain_ms / 1000)
        server.should_exit = True

    tasks = [*following, asyncio.create_task(leave())]
    try:
        await server.serve([listener])
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


def tokens_for(tokens: Sequence[str], host: str, flags: str, *, anyone: bool) -> Tokens:
    """Return the tokens of a server.

    Raises BadTokens if the server listens to other machines without tokens and without `anyone`.
    The message names `flags`, the settings to use.
    """
    valid = Tokens(tokens)
    if not valid and not anyone and not is_this_machine(host):
        raise BadTokens(
            f"expected tokens to listen on {host}, which other machines reach, got none: "
            f"set {flags}, or --anyone if a proxy in front checks requests"
        )
    return valid


@contextlib.contextmanager
def listening_socket(
    host: str, port: int, setting: str = "--port / HEADRACE_PORT"
) -> Iterator[socket.socket]:
    """Listen on host:port; port 0 takes a free one. Raises AddressTaken, which names `setting`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise AddressTaken(host, port, setting, str(error.strerror)) from error
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        yield listener
