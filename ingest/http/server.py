"""What every HTTP process of headrace does alike: its socket, its metrics, its loop, its end.

When told to stop it first says that it is not ready, goes on answering for `drain_ms` so that
whoever balances load can notice, accepts no more connections, finishes the requests under way, and
only then leaves. The collector and the prediction servers differ in what they answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    start_http_server,
)
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.ingest.http.bearer_tokens import Tokens
from headrace.ingest.http.http_errors import AddressTaken, BadTokens

if TYPE_CHECKING:
    import threading
    from asyncio import TimerHandle
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from fastapi import FastAPI

_STOP_POLL_S = 0.05
_BACKLOG = 2048
"""Connections that may wait to be accepted; the system's own limit still holds."""
_KEEP_ALIVE_S = 75
"""Longer than load balancers keep idle connections: the one that closes must not be us, or a
request that is on its way at that moment is lost."""


class Readiness:
    """Whether a server wants requests: withdrawn first when it is told to leave."""

    def __init__(self) -> None:
        self.leaving = False


@dataclass(frozen=True, slots=True)
class Draining:
    """How a server comes to its end."""

    stop: threading.Event
    readiness: Readiness
    broken: Callable[[], bool]
    """Whether there is no use in going on: then it leaves at once."""
    drain_ms: int
    """How long to go on answering once not ready: more than a load balancer's probe interval."""
    finish_s: int
    """How long requests under way may take to finish."""


def run_app(
    app: FastAPI,
    listener: socket.socket,
    leaving: Draining,
    beside: Sequence[Callable[[], Coroutine[None, None, None]]] = (),
    protocol: type[SingleWriteProtocol] | None = None,
) -> None:
    """Answer on `listener` until told to leave; `beside` runs on the same loop meanwhile.

    protocol: of a connection; None: uvicorn's, with what is below. Raises what any of `beside`
    ended with.
    """
    server = _Server(
        uvicorn.Config(
            app,
            loop="none",  # the loop is ours: made by the runner
            http=protocol or SingleWriteProtocol,
            proxy_headers=False,  # nobody here asks who the client was
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
        runner.run(_serve(server, listener, leaving, beside))


class SingleWriteProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with the head and the body of an answer in one write, and one timer for
    a connection's idleness.

    Each write is a call to the system, the dearest thing that a short answer needs. uvicorn sets a
    timer after each answer and cancels it at the next request; here it is left to run out, and
    looks then whether there was one.
    """

    _idle_since: float | None = None
    """Loop time of the end of the last answer; None while there is something to answer."""
    _look_at: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(BatchingTransport(transport, self.loop))  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._look_at is not None:
            self._look_at.cancel()
            self._look_at = None

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._look_at is None:
            self._look_at = self.loop.call_later(self.timeout_keep_alive, self._look)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _look(self) -> None:
        """Close the connection if it was idle for too long."""
        self._look_at = None
        if self._idle_since is None:
            return  # the end of the next answer sets the timer
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._look_at = self.loop.call_later(left_s, self._look)
        else:
            self.timeout_keep_alive_handler()


class BatchingTransport:
    """A transport that sends what was written in one turn of the event loop at once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []
        self.is_closing = transport.is_closing  # asked often: not by way of what follows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send these bytes, in a moment."""
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def send(self, data: bytes) -> None:
        """Send these bytes now, after what was written."""
        if self._parts:
            self._parts.append(data)
            self._send()
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, then close."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the command line has its own, and sets `stop`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    server: uvicorn.Server,
    listener: socket.socket,
    leaving: Draining,
    beside: Sequence[Callable[[], Coroutine[None, None, None]]],
) -> None:
    following = [asyncio.create_task(each()) for each in beside]

    def broken() -> bool:
        return leaving.broken() or any(task.done() for task in following)

    async def leave() -> None:
        # asked rather than awaited: an event of threads cannot wake an event loop
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


def new_registry() -> CollectorRegistry:
    """Return a registry that tells of the process itself."""
    registry = CollectorRegistry()
    for collect in (ProcessCollector, PlatformCollector, GCCollector):
        collect(registry=registry)
    return registry


def tokens_for(tokens: Sequence[str], host: str, flags: str, *, anyone: bool) -> Tokens:
    """Return the tokens; `flags` is what to say in their place. Raises BadTokens."""
    made = Tokens(tokens)
    if not made and not anyone and not is_this_machine(host):
        raise BadTokens(
            f"expected tokens to listen on {host}, which other machines reach, found "
            f"none: {flags}, or --anyone if something in front checks"
        )
    return made


def is_this_machine(host: str) -> bool:
    """Return whether only processes of this machine reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen; port 0 is a free one. Raises AddressTaken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            taken = "--port / HEADRACE_PORT"
            raise AddressTaken(host, port, taken, str(error.strerror)) from error
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        yield listener


@contextlib.contextmanager
def metrics_port(host: str, port: int, registry: CollectorRegistry) -> Iterator[None]:
    """Serve metrics on a port of their own as long as this lasts; 0: none. Raises AddressTaken."""
    if not port:
        yield
        return
    try:
        server, thread = start_http_server(port, host, registry=registry)
    except OSError as error:
        taken = "--metrics-port / HEADRACE_METRICS_PORT"
        raise AddressTaken(host, port, taken, str(error.strerror)) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def rare_collections(objects: int) -> Iterator[None]:
    """Look for cycles only every so many objects, as long as this lasts.

    What was imported is taken out of the search altogether, which else stops everything for tens of
    milliseconds.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(objects, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
