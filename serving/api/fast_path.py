"""Answers requests that arrive in one piece without ASGI: a low-level optimization.

Almost every POST to `:predict` and `:rank` is complete once its head was read, because the body
came in the same packet. For such a request, uvicorn's task, scope and channels cost as much as the
prediction. `FastPathProtocol` holds it until the bytes at hand are read. If it is complete by then,
the protocol drives the coroutine of `PredictionHandler.answer` itself. Otherwise uvicorn gets the
held parts and continues as if it had received them in the first place. Bodies in several pieces,
`Expect: 100-continue`, HTTP/1.0 and all other routes are always uvicorn's.

Measured saving: 60 to 140 us of processor time per request of one candidate, a quarter to a third.
The least of 40 rounds without sockets was 256 us instead of 399 us by way of ASGI, in a second run
176 instead of 271 us, and on another day 179 instead of 240.

The price is a dependency on internals of uvicorn 0.54, which pyproject.toml therefore pins to the
minor version. On `HttpToolsProtocol` these are the parser callbacks (`on_headers_complete`,
`on_body`, `on_message_complete`, `on_response_complete`) and the attributes
`cycle`, `expect_100_continue`, `flow.write_paused`, `headers`, `logger`, `loop`, `parser`,
`server_state.default_headers`, `transport` and `url`. `FastPathRequest` also replaces uvicorn's
`RequestResponseCycle`, so pipelined requests wait behind it, a shutdown waits for it, and a lost
connection marks it. `fast_path_probe` checks all of this at startup, and the server does without
the fast path if a check fails.

Both ways run the same `PredictionHandler.answer`, so they cannot decide differently. On the fast
path no task exists: the coroutine may await futures and `asyncio.sleep(0)`, nothing else.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Coroutine
from functools import lru_cache
from http.client import responses
from typing import Any

from fastapi import Response
from starlette.datastructures import Headers
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from headrace.runtime.http.server import BatchingTransport, SingleWriteProtocol
from headrace.serving.api.app import LONGEST_PATH, Ask
from headrace.serving.api.load_shedding import WholeRequest

_NAMES = 256
"""Header names in the cache: more than the handlers ever look up."""


@lru_cache(_NAMES)
def _encoded(name: str) -> bytes:
    return name.lower().encode("latin-1")


@lru_cache(None)  # of at most a few dozen statuses
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {responses.get(status, '')}\r\n".encode()


class _Headers(Headers):
    """Starlette's headers with a faster `get` for names that are missing."""

    def get(self, key: str, default: Any = None) -> Any:
        wanted = _encoded(key)
        for name, value in self.raw:
            if name == wanted:
                return value.decode("latin-1")
        return default


class FastPathProtocol(SingleWriteProtocol):
    """uvicorn's protocol with a fast path for the routes that `App.handler_of` finds."""

    _handler: tuple[Ask, str] | None = None
    """Handler and model of the request that is being read, if it may take the fast path."""
    _body: bytes = b""

    def __init__(self, config: Config, *others: Any, **named: Any) -> None:
        super().__init__(config, *others, **named)
        app: Any = config.app
        self._handler_at: Callable[[bytes], tuple[Ask, str] | None] = app.handler_at

    def on_headers_complete(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        parser = self.parser
        if (
            (cycle is None or cycle.response_complete)
            and not self.flow.write_paused  # uvicorn waits until the client reads
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not parser.should_upgrade()
            and len(self.url) <= LONGEST_PATH
        ):
            self._handler, self._body = self._handler_at(self.url), b""
        if self._handler is None:
            super().on_headers_complete()
        else:
            self.note_head_end()

    def on_body(self, body: bytes) -> None:
        if self._handler is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        if self._handler is None:
            super().on_message_complete()
            return
        self.note_message_end()
        (ask, name), self._handler = self._handler, None
        request = WholeRequest(_Headers(raw=self.headers), self._body)
        cycle = FastPathRequest(self, ask(request, name))
        self.cycle = cycle  # type: ignore[assignment]
        cycle.begin()

    def process(self, data: bytes) -> None:
        super().process(data)
        if self._handler is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Give an incomplete request to uvicorn."""
        self._handler = None
        if self.transport.is_closing():  # it was not HTTP: uvicorn has answered 400
            return
        super().on_headers_complete()
        if self._body:
            super().on_body(self._body)


class FastPathRequest:
    """A request in progress. It takes the place of uvicorn's `RequestResponseCycle`."""

    __slots__ = (
        "_answer",
        "_protocol",
        "disconnected",
        "keep_alive",
        "response_complete",
    )

    def __init__(self, protocol: FastPathProtocol, answer: Coroutine[Any, Any, Response]) -> None:
        self._protocol, self._answer = protocol, answer
        self.keep_alive: bool = protocol.parser.should_keep_alive()
        self.disconnected = self.response_complete = False

    @property
    def message_event(self) -> FastPathRequest:
        """The event that uvicorn sets when the client disconnects."""
        return self

    def set(self) -> None:
        """Do nothing: the request is complete, and `_send` checks for a closed connection."""

    def begin(self) -> None:
        """Run the coroutine until it waits.

        An immediate response is sent only after all bytes at hand are read, because bytes behind a
        request that closes the connection must be ignored.
        """
        response = self._run()
        if response is not None:
            self._protocol.loop.call_soon(self._send, response)

    def _resume(self, _: object = None) -> None:
        response = self._run()
        if response is not None:
            self._send(response)

    def _run(self) -> Response | None:
        try:
            awaited: Future[Any] | None = self._answer.send(None)
        except StopIteration as ended:
            answer: Response = ended.value
            return answer
        except Exception as error:
            self._protocol.logger.error("Exception in an answer\n", exc_info=error)
            close = {"Connection": "close"}
            return Response("Internal Server Error", 500, close, media_type="text/plain")
        if awaited is None:  # asyncio.sleep(0)
            self._protocol.loop.call_soon(self._resume)
        else:
            awaited.add_done_callback(self._resume)
        return None

    def _send(self, response: Response) -> None:
        self.response_complete = True
        protocol, status = self._protocol, response.status_code
        if not protocol.proven and 200 <= status < 300:
            protocol.prove()
        transport: BatchingTransport = protocol.transport  # type: ignore[assignment]
        if transport.is_closing():
            return
        parts = [_status_line(status)]
        for name, value in (*protocol.server_state.default_headers, *response.raw_headers):
            if name == b"connection":
                self.keep_alive = self.keep_alive and value != b"close"
            else:
                parts += (name, b": ", value, b"\r\n")
        parts += (
            b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n",
            bytes(response.body),
        )
        transport.send(b"".join(parts))
        if not self.keep_alive:
            transport.close()
        protocol.on_response_complete()
