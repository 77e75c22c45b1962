"""Tests that the writes of one turn of the event loop are sent as one, and that none is lost."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
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


async def batched(*turns: Sequence[tuple[str, bytes]]) -> list[Any]:
    """Return the writes after these calls of a batching transport, turn by turn of the loop."""
    transport = Transport()
    batching = BatchingTransport(transport, asyncio.get_running_loop())
    for calls in turns:
        for name, data in calls:
            if name == "gone":
                transport.close()
            else:
                getattr(batching, name)(*([] if name == "close" else [data]))
        await asyncio.sleep(0)
    return transport.writes


@pytest.mark.parametrize(
    ("turns", "writes"),
    [
        (
            [[("write", b"head "), ("write", b"body")], [("write", b"more")]],
            [b"head body", b"more"],
        ),
        ([[("write", b"last"), ("close", b"")]], [b"last", "closed"]),
        ([[("write", b"one "), ("send", b"two"), ("send", b"three")]], [b"one two", b"three"]),
        ([[("write", b"late"), ("gone", b"")]], ["closed"]),
    ],
    ids=["one write a turn", "close", "send", "the client has gone"],
)
def test_the_writes_of_a_turn_are_one_and_keep_their_order(
    turns: list[list[tuple[str, bytes]]], writes: list[Any]
) -> None:
    assert asyncio.run(batched(*turns)) == writes


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


def test_an_http_connection_is_not_idle_during_a_request_and_leaves_no_timer() -> None:
    timers = Timers()
    protocol, transport = connection(timers)
    protocol.on_response_complete()
    timers.pass_to(9.0)
    protocol._unset_keepalive_if_required()  # data arrived
    timers.pass_to(100.0)
    assert not transport.is_closing()
    protocol.on_response_complete()
    assert len(timers.set) == 1
    protocol.connection_lost(None)
    assert timers.set == []


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
