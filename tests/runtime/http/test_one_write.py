"""Tests that the writes of one turn of the event loop are sent as one, and that none is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from headrace.runtime.http.server import BatchingTransport, HeadAsGet, SingleWriteProtocol


class Transport(asyncio.Transport):
    """Records the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Any] = []

    def write(self, data: Any) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.writes.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.writes


def test_head_and_body_of_an_http_answer_are_one_write() -> None:
    async def answer() -> list[Any]:
        transport = Transport()
        gathered = BatchingTransport(transport, asyncio.get_running_loop())
        gathered.write(b"head ")
        gathered.write(b"body")
        assert transport.writes == []
        await asyncio.sleep(0)
        gathered.write(b"another")
        await asyncio.sleep(0)
        return transport.writes

    assert asyncio.run(answer()) == [b"head body", b"another"]


def test_a_batching_transport_sends_earlier_writes_before_it_closes() -> None:
    async def answer() -> Transport:
        transport = Transport()
        gathered = BatchingTransport(transport, asyncio.get_running_loop())
        gathered.write(b"last")
        gathered.close()
        await asyncio.sleep(0)
        return transport

    transport = asyncio.run(answer())
    assert transport.writes == [b"last", "closed"]
    assert transport.is_closing()


def test_an_immediate_send_follows_earlier_writes() -> None:
    async def answer() -> list[Any]:
        transport = Transport()
        gathered = BatchingTransport(transport, asyncio.get_running_loop())
        gathered.write(b"one ")
        gathered.send(b"two")
        gathered.send(b"three")
        await asyncio.sleep(0)
        return transport.writes

    assert asyncio.run(answer()) == [b"one two", b"three"]


class Timers:
    """An event loop whose time the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.set: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        loop: Any = self
        handle = asyncio.TimerHandle(self.now_s + delay_s, call, (), loop)
        self.set.append((self.now_s + delay_s, call, handle))
        return handle

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.set = [each for each in self.set if each[2] is not handle]

    def pass_to(self, now_s: float) -> None:
        while self.set and self.set[0][0] <= now_s:
            self.now_s, call, _ = self.set.pop(0)
            call()
        self.now_s = now_s


async def app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("expected no request")


def connection(timers: Timers) -> tuple[SingleWriteProtocol, Transport]:
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_keep_alive=10)
    loop: Any = timers
    protocol, transport = SingleWriteProtocol(config, ServerState(), {}, loop), Transport()
    protocol.connection_made(transport)
    return protocol, transport


def test_an_http_connection_is_closed_after_its_idle_timeout() -> None:
    timers = Timers()
    protocol, transport = connection(timers)
    for now_s in (0.0, 4.0, 9.0):  # each answer restarts the idle timeout
        timers.pass_to(now_s)
        protocol._unset_keepalive_if_required()
        protocol.on_response_complete()
        assert len(timers.set) == 1
    timers.pass_to(18.9)
    assert not transport.is_closing()
    timers.pass_to(19.0)
    assert transport.is_closing()
    assert timers.set == []


def test_an_http_connection_is_not_idle_during_a_request() -> None:
    timers = Timers()
    protocol, transport = connection(timers)
    protocol.on_response_complete()
    timers.pass_to(9.0)
    protocol._unset_keepalive_if_required()  # data arrived
    timers.pass_to(100.0)
    assert not transport.is_closing()
    protocol.on_response_complete()
    timers.pass_to(110.0)
    assert transport.is_closing()


def test_a_closed_http_connection_leaves_no_timer() -> None:
    timers = Timers()
    protocol, _ = connection(timers)
    protocol.on_response_complete()
    assert len(timers.set) == 1
    protocol.connection_lost(None)
    assert timers.set == []


def test_an_answer_to_a_client_that_has_gone_is_dropped() -> None:
    async def answer() -> list[Any]:
        transport = Transport()
        batching = BatchingTransport(transport, asyncio.get_running_loop())
        batching.write(b"late")
        transport.close()
        await asyncio.sleep(0)
        return transport.writes

    assert asyncio.run(answer()) == ["closed"]


def test_head_is_answered_as_get_without_the_body() -> None:
    seen = []

    async def page(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["method"])
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"page"})

    async def answer(method: bytes) -> bytes:
        config = uvicorn.Config(HeadAsGet(page), log_config=None, ws="none", interface="asgi3")
        config.load()
        transport, loop = Transport(), asyncio.get_running_loop()
        protocol = SingleWriteProtocol(config, ServerState(), {}, loop)
        protocol.connection_made(transport)
        protocol.data_received(method + b" /page HTTP/1.1\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(10):
            while not transport.writes:
                await asyncio.sleep(0)
        return b"".join(transport.writes)

    got, head = asyncio.run(answer(b"GET")), asyncio.run(answer(b"HEAD"))
    assert seen == ["GET", "GET"]
    assert got.endswith(b"\r\n\r\npage")
    assert head.endswith(b"\r\n\r\n")
    assert b"content-length: 4" in head
