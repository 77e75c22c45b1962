"""Bounds what a connection may bring before a handler sees a request.

uvicorn and httptools set no bound on the bytes of a head, on the number of headers, on the time a
head may take, or on pipelined requests. Without a bound one client without a token can take all
memory. Each bound has an answer: 431 for a head that is too large, 408 for one that takes too long,
503 for a connection too many, and `Connection: close` after too many pipelined requests. Where no
request needs a token, a page of another site gets 403 (`local_senders`).

A client may offer to upgrade the connection (Java's HttpClient and `curl --http2` do so by
default). RFC 9110, 7.8: a server that does not upgrade answers as if there were no offer. llhttp
instead skips the body and ends the request at its head, so the body would be read as the next
request. `BoundedProtocol` therefore parses such a head again without the offer.

Bounds alone do not keep a crowd of new connections from delaying other clients. Their bytes wait in
an `UnprovenQueue` until a request has proven the connection.

This reaches into uvicorn: `HttpToolsProtocol`'s parser callbacks, `parser`, `pipeline`, `flow`,
`cycle`, `connections`, `server_state` and `config`; and into httptools: the offset that
`HttpParserUpgrade` carries. pyproject.toml pins both to a minor version;
tests/runtime/http/test_bounded_protocol.py fails when one of them changes.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headrace.runtime.http.local_senders import is_foreign
from headrace.runtime.http.unproven_connections import (
    ANSWER_S,
    BYTE_S,
    CONNECTION_S,
    READING_S,
    UnprovenQueue,
)

if TYPE_CHECKING:
    import asyncio

_MOST_CONNECTIONS = 16_384
_OWN_FILES = 128
"""Descriptors that a server needs beside its connections: Kafka, Redis, files, logs."""
_FEW = 16
_QUEUES: WeakKeyDictionary[ServerState, UnprovenQueue] = WeakKeyDictionary()
"""The queue of each server of this process."""
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


def most_connections() -> int:
    """Return how many connections the limit on open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(_FEW, min(_MOST_CONNECTIONS, files - _OWN_FILES))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection, and of their number."""

    head_bytes: int = 32_768
    """Size of a request line with its headers, or of the trailers; 431 beyond."""
    headers: int = 100
    """Number in one request; 431 beyond. Browsers and proxies send some twenty."""
    head_timeout_s: float = 10.0
    """From the first byte of a head to its last; 408 beyond."""
    pipelined: int = 16
    """Requests that wait for the answer to an earlier one; the connection closes after them."""
    unproven_pipelined: int = 3
    """The same before a POST on the connection was answered with success."""
    connections: int = field(default_factory=most_connections)
    """Open at once; 503 and close beyond."""


class _HeadTooLarge(Exception):
    """Raised in a callback: httptools turns it into HttpParserCallbackError."""


class _ForeignSender(Exception):
    """Raised in a callback, like _HeadTooLarge."""


class _TooManyPipelined(Exception):
    """Raised in a callback, like _HeadTooLarge."""


def _bytes_of(headers: list[tuple[bytes, bytes]]) -> int:
    return sum(len(name) + len(value) for name, value in headers)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol within `limits`, deaf to offers of an upgrade."""

    limits: ClassVar[ConnectionLimits] = ConnectionLimits()

    local_only = False
    """Whether to refuse requests of pages of other sites, which a browser here would send."""
    proven = False
    """Whether a POST on this connection was answered with success."""
    _queued = 0
    """Pieces of this connection's bytes in the queue."""
    _waiting = False
    """Whether the connection waits in the queue without bytes, and is not read."""
    _spent_s = 0.0
    """Time of the queue that this connection took."""
    _reading_s = 0.0
    """The part of it for bytes to come: its turn has begun, so they do not wait again."""
    _ended = False
    """Whether the last answer of this connection is decided: bytes are no longer parsed."""
    _offered = False
    """Whether the head that was just read offers an upgrade."""
    _in_head = False
    _progressed = False
    """Whether these bytes ended a head, brought some of a body, or ended a request."""
    _idle_bytes = 0
    """Received since the last progress: of an unfinished head, of trailers, of blank lines."""
    _most_bytes = 0
    """The same with the bytes that are being parsed: no head in them is larger."""
    _headers = 0
    """Number in the request that is being read, without its trailers."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._queue = self._queue_of_server()
        self._spend(CONNECTION_S)
        if len(self.connections) > self.limits.connections:
            self._refuse(503, f"expected at most {self.limits.connections} connections, got more")
        elif not self._queue.admits(0):
            self._wait_to_read()

    def _queue_of_server(self) -> UnprovenQueue:
        queue = _QUEUES.get(self.server_state)
        if queue is None:
            queue = _QUEUES[self.server_state] = UnprovenQueue(self.loop)
        return queue

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.proven and not self._queued:
            self.process(data)
        elif self._queued or not self._admitted(len(data)):
            self._queued += 1
            self.transport.pause_reading()
            self._queue.wait(self, data, again=self._reading_s > 0.0)
        else:
            self._process_unproven(data)

    def _admitted(self, size: int) -> bool:
        return self._queue.has_time if self._reading_s else self._queue.admits(size)

    def _process_unproven(self, data: bytes) -> None:
        began_s, assumed_s = time.perf_counter(), self._reading_s
        self._reading_s = 0.0
        self._spent_s -= assumed_s
        self._queue.refund(assumed_s)
        self.process(data)
        self._spend(time.perf_counter() - began_s + len(data) * BYTE_S)
        if self._queue.exhausted and not self.transport.is_closing():
            self._wait_to_read()

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        self._queue.spend(seconds)

    def _wait_to_read(self) -> None:
        """Read no more before it is this connection's turn: bytes in the system cost nothing."""
        if not self._waiting:
            self._waiting = True
            self.transport.pause_reading()
            self._queue.wait(self)

    def take_turn(self, data: bytes) -> None:
        """Process bytes from the queue; without any, read the next ones."""
        if data:
            self._queued -= 1
            if not self.transport.is_closing():
                self._process_unproven(data)
        else:
            self._waiting = False
            if not self.proven:
                self._reading_s = READING_S
                self._spend(READING_S)
        self._read_on()

    def prove(self) -> None:
        """Note that a POST on this connection was answered with success."""
        if not self.proven:
            self.proven = True
            self._queue.refund(self._spent_s)
            self._read_on()

    def _read_on(self) -> None:
        waits = self._queued or (self._waiting and not self.proven)
        if not waits and not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def process(self, data: bytes) -> None:
        """Parse these bytes and handle what they complete."""
        self._unset_keepalive_if_required()
        while data and not self._ended:
            data = self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        """Parse these bytes; return those that are to be parsed next."""
        self._progressed, self._most_bytes = False, self._idle_bytes + len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_offer() + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._refuse_unparsed(error)
            return b""
        self._idle_bytes = 0 if self._progressed else self._idle_bytes + len(data)
        if self._idle_bytes > self.limits.head_bytes:
            self._refuse_head()
        elif self._in_head or self._idle_bytes:
            self._start_head_timer()
        return b""

    def _without_offer(self) -> bytes:
        """Return the head that was just read without its offer, for a new parser."""
        self._offered = False
        parser, self.parser = self.parser, httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if parser.get_method() == b"CONNECT":  # an upgrade by its nature
            self._refuse(400, "expected a request to this server, got CONNECT")
            return b""
        version = parser.get_http_version().encode()
        head = [parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(token for token in tokens if token.lower() != b"upgrade")
            else:
                kept = b"" if name == b"upgrade" else value
            if kept or not value:
                head += [name, b": ", kept, b"\r\n"]
        return b"".join((*head, b"\r\n"))

    # ------------------------------------------------------------------------ parser callbacks

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def note_head_end(self) -> None:
        """Note that a head was read. A subclass that handles a request itself calls it.

        Raises in this parser if the head is beyond the limits. It cannot be larger than the bytes
        since the last request, so its size is computed only if those are beyond the limit.
        """
        headers, limits = self.headers, self.limits
        if len(headers) > limits.headers or (
            self._most_bytes > limits.head_bytes
            and len(self.url) + _bytes_of(headers) > limits.head_bytes
        ):
            raise _HeadTooLarge
        if self.local_only:
            self._check_sender()
        self._in_head, self._progressed, self._headers = False, True, len(headers)
        if self._head_timer is not None:
            self._stop_head_timer()

    def _check_sender(self) -> None:
        named = {name: value for name, value in self.headers if name in (b"host", b"origin")}
        origin = named.get(b"origin")
        # without a Host, as in HTTP/1.0, no browser sent it
        if named and is_foreign(
            named.get(b"host", b"").decode("latin-1"),
            None if origin is None else origin.decode("latin-1"),
        ):
            raise _ForeignSender

    def note_message_end(self) -> None:
        """Note that a request was read. A subclass that handles a request itself calls it.

        Raises in this parser if its trailers are beyond the limits of a head.
        """
        self._progressed = True
        if len(self.headers) > self._headers:
            trailers, limits = self.headers[self._headers :], self.limits
            if len(trailers) > limits.headers or _bytes_of(trailers) > limits.head_bytes:
                raise _HeadTooLarge

    def on_headers_complete(self) -> None:
        self.note_head_end()
        if self.parser.should_upgrade():
            self._offered = True
            return
        limits = self.limits
        if len(self.pipeline) >= (limits.pipelined if self.proven else limits.unproven_pipelined):
            raise _TooManyPipelined
        if not self.proven:
            self._spend(ANSWER_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.note_message_end()
        if not self._offered:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.pipeline and not self.transport.is_closing():
            self.flow.pause_reading()  # uvicorn has resumed it though requests are still waiting

    # ----------------------------------------------------------------------------- refusals

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_timeout_s, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(408, f"expected a whole head within {self.limits.head_timeout_s:g} s")

    def _refuse_head(self) -> None:
        limits = self.limits
        most = f"at most {limits.head_bytes} bytes and {limits.headers} headers"
        self._refuse(431, f"expected a head of {most}, got more")

    def _refuse_unparsed(self, error: Exception) -> None:
        cause: Any = error.__context__
        if isinstance(cause, _HeadTooLarge):
            self._refuse_head()
        elif isinstance(cause, _ForeignSender):
            said = "expected a request of this machine to a loopback address, got another Host or "
            self._refuse(403, f"{said}Origin: set tokens, or --anyone behind a proxy")
        elif isinstance(cause, _TooManyPipelined):
            self._end_after_the_last()
        elif isinstance(error, httptools.HttpParserCallbackError) and not isinstance(
            cause, httptools.HttpParserError | UnicodeDecodeError
        ):
            raise error  # an error of ours, not of the target that uvicorn parses in its callback
        else:
            self._refuse(400, "Invalid HTTP request received.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer and close; without an answer of its own behind those that are under way."""
        if self._ended or self.transport.is_closing() or self._end_after_the_last():
            return
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(message)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + message.encode())
        self.transport.close()

    def _end_after_the_last(self) -> bool:
        """Parse no more, and close after the last answer; return whether one is still to come."""
        self._ended = True
        self._stop_head_timer()
        last: Any = self.pipeline[0][0] if self.pipeline else self.cycle
        if last is None or last.response_complete or getattr(last, "more_body", False):
            return False  # a request whose body will never be whole gets no other answer
        last.keep_alive = False
        self.flow.pause_reading()
        return True
