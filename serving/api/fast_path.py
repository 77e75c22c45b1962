"""A request that came in one piece is answered without a task, a scope or a channel of its own.

Nearly all that are posted to the paths that everything is about are whole once their head was
read: the body came in the same packet. For those, what ASGI and asyncio put between the socket and
the answer costs as much as the answer. So `FastPathProtocol` holds such a request until the bytes
at hand end. Is it whole by then, the coroutine that answers every such request is made and driven
from here. Else uvicorn gets what was held, and goes on as if it had had it from the beginning: a
body that trickles, waits for `100 Continue`, stalls or breaks off is uvicorn's, and so is every
other path, method and version.

There is one way to decide what a request is told, `Answering.answer`, and this is another way to
run it, not a second one. Of a coroutine's freedoms it must use none that need a task: it may await
futures and give way, nothing else.

To uvicorn the request is a cycle like others: pipelined ones wait behind it, a server that leaves
waits for it, and it knows when its client is gone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fastapi import Response
from starlette.datastructures import Headers
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.ingest.http import SingleWriteProtocol
from headrace.serving.api.app import LONGEST_PATH
from headrace.serving.api.load_shedding import WholeRequest

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Coroutine

    from uvicorn import Config
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from headrace.ingest.http import BatchingTransport
    from headrace.serving.api.app import Ask

_NAMES = 256
"""Names of headers that are remembered: no more are asked for."""


@lru_cache(_NAMES)
def _written(name: str) -> bytes:
    return name.lower().encode("latin-1")


class _Headers(Headers):
    """Starlette's, quicker to say that there is none of a name."""

    def get(self, key: str, default: Any = None) -> Any:
        wanted = _written(key)
        for name, value in self.raw:
            if name == wanted:
                return value.decode("latin-1")
        return default


class FastPathProtocol(SingleWriteProtocol):
    """uvicorn's protocol, past which go those requests that `App.asked_by` knows."""

    _held: tuple[Ask, str] | None = None
    """Who is to answer the request at hand, which is not whole yet, and of which model."""
    _body: bytes = b""

    def __init__(self, config: Config, *others: Any, **named: Any) -> None:
        super().__init__(config, *others, **named)
        app: Any = config.app
        self._asked_at: Callable[[bytes], tuple[Ask, str] | None] = app.asked_at

    def on_headers_complete(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        parser = self.parser
        if (
            (cycle is None or cycle.response_complete)
            and not self.flow.write_paused  # who does not read its answers waits for itself
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and not self.expect_100_continue
            and not parser.should_upgrade()
            and len(self.url) <= LONGEST_PATH
        ):
            self._held, self._body = self._asked_at(self.url), b""
        if self._held is None:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._held is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        if self._held is None:
            super().on_message_complete()
            return
        (ask, name), self._held = self._held, None
        request = WholeRequest(_Headers(raw=self.headers), self._body)
        prompted = FastPathRequest(self, ask(request, name))
        self.cycle = prompted  # type: ignore[assignment]
        prompted.begin()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._held is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Let uvicorn have a request of which there is more to come."""
        self._held = None
        if self.transport.is_closing():  # it was no HTTP, and was told so
            return
        super().on_headers_complete()
        if self._body:
            super().on_body(self._body)


class FastPathRequest:
    """A request under way, as uvicorn knows one: its cycle, which drives the answer itself."""

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
        """What is told that the client is gone."""
        return self

    def set(self) -> None:
        """Nothing: it has all it needs, and looks whether anybody hears before it speaks."""

    def begin(self) -> None:
        """Run the answer until it waits. What is told at once is told when all bytes at hand were
        read: those behind a request that ends the connection count for nothing.
        """
        said = self._run()
        if said is not None:
            self._protocol.loop.call_soon(self._say, said)

    def _go_on(self, _: object = None) -> None:
        said = self._run()
        if said is not None:
            self._say(said)

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
        if awaited is None:  # it gives way to others
            self._protocol.loop.call_soon(self._go_on)
        else:
            awaited.add_done_callback(self._go_on)
        return None

    def _say(self, response: Response) -> None:
        self.response_complete = True
        protocol, status = self._protocol, response.status_code
        transport: BatchingTransport = protocol.transport  # type: ignore[assignment]
        if transport.is_closing():
            return
        parts = [STATUS_LINE[status]]
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
