"""Tests the bounds of a connection before a handler sees a request, and offers of an upgrade."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from headrace.runtime.http.bounded_protocol import ConnectionLimits
from headrace.runtime.http.listen_settings import ListenSettings
from headrace.runtime.http.server import SingleWriteProtocol
from tests.effort import examples
from tests.memory_connection import MemoryConnection, until

LIMITS = ConnectionLimits(
    head_bytes=2_000, headers=20, head_timeout_s=10.0, pipelined=4, connections=3
)


class Bounded(SingleWriteProtocol):
    limits = LIMITS


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the method, the path and the body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    text = f"{scope['method']} {scope['path']} ".encode() + body
    length = (b"content-length", str(len(text)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": text})


class Client(MemoryConnection):
    """A client of the bounded protocol."""

    def __init__(self, state: ServerState | None = None, app: Any = echo) -> None:
        config = uvicorn.Config(app, ws="none", log_config=None, proxy_headers=False)
        config.load()
        super().__init__(Bounded, config, state)

    async def answers(self, count: int) -> list[bytes]:
        """Return the answers once there are `count`, or the connection is closed."""
        received = await self.received_once(lambda: self.received.count(b"HTTP/1.1 ") >= count)
        return [b"HTTP/1.1 " + answer for answer in received.split(b"HTTP/1.1 ")[1:]]


def conversation(*pieces: bytes, count: int = 1) -> list[bytes]:
    """Return the answers to bytes that arrive in these pieces."""

    async def talk() -> list[bytes]:
        client = Client()
        await client.send(*pieces)
        return await client.answers(count)

    return asyncio.run(talk())


def post(path: str, body: bytes, *headers: str, chunked: bool = False) -> bytes:
    """A POST; `chunked`: with its body in two chunks."""
    half = len(body) // 2
    if chunked:
        parts = [part for part in (body[:half], body[half:]) if part]
        sent = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        framing = "Transfer-Encoding: chunked"
    else:
        sent, framing = body, f"Content-Length: {len(body)}"
    lines = [f"POST {path} HTTP/1.1", "Host: server", framing, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent


OFFERS = (
    ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB"),
    ("Connection: Upgrade", "Upgrade: websocket"),
    ("Upgrade: x", "connection: keep-alive, upgrade"),
)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(
        st.tuples(st.sampled_from([b"", b"a", b"POST /b HTTP/1.1\r\n\r\n"]), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.sampled_from((None, *OFFERS)), min_size=3, max_size=3),
    st.lists(st.floats(0.0, 1.0), max_size=4),
)
def test_an_offer_of_an_upgrade_changes_no_answer_however_the_bytes_are_cut(
    requests: list[tuple[bytes, bool]], offers: list[tuple[str, ...] | None], cuts: list[float]
) -> None:
    plain, offered = [], []
    for i, (body, chunked) in enumerate(requests):
        plain.append(post(f"/{i}", body, chunked=chunked))
        offered.append(post(f"/{i}", body, *(offers[i] or ()), chunked=chunked))
    expected = conversation(b"".join(plain), count=len(plain))
    sent = b"".join(offered)
    at = [0, *sorted(int(cut * len(sent)) for cut in cuts), len(sent)]
    pieces = [sent[i:j] for i, j in itertools.pairwise(at) if i < j]
    assert conversation(*pieces, count=len(plain)) == expected


def test_the_body_of_a_request_with_an_offer_is_never_a_second_request() -> None:
    inner = post("/inner", b"smuggled")
    head, _, _ = post("/outer", inner, *OFFERS[0]).partition(b"\r\n\r\n")
    [answer] = conversation(head + b"\r\n\r\n", inner)
    assert answer.endswith(b"POST /outer " + inner)


ENDLESS = {
    "many headers": (b"GET / HTTP/1.1\r\n", b"a: b\r\n"),
    "one header": (b"GET / HTTP/1.1\r\nA: ", b"x" * 100),
    "the name of a header": (b"GET / HTTP/1.1\r\n", b"x" * 100),
    "the path": (b"GET /", b"x" * 100),
    "blank lines": (b"\r\n", b"\r\n" * 50),
    "the trailers": (post("/", b"ab", chunked=True)[:-2], b"a: b\r\n"),
    "one trailer": (post("/", b"ab", chunked=True)[:-2] + b"A: ", b"x" * 100),
    "an extension of a chunk": (
        b"POST / HTTP/1.1\r\nHost: s\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"x" * 100,
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_bytes_of_a_head_that_never_ends_are_refused(name: str) -> None:
    begin, more = ENDLESS[name]

    async def talk() -> tuple[int, bool, bytes]:
        client, sent = Client(), 0
        await client.send(begin)
        while not client.closed and sent < 100_000:
            await client.send(more)
            sent += len(more)
        [answer] = await client.answers(1)
        return sent, client.closed, answer

    sent, closed, answer = asyncio.run(talk())
    assert closed
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))
    assert sent <= 2 * LIMITS.head_bytes


def test_a_head_within_the_limits_is_answered() -> None:
    headers = [f"X-{i}: {'v' * 50}" for i in range(LIMITS.headers - 2)]
    [answer] = conversation(post("/", b"body", *headers))
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("proven", [False, True])
def test_a_connection_gets_at_most_some_pipelined_answers_and_is_closed(proven: bool) -> None:
    most = LIMITS.pipelined if proven else LIMITS.unproven_pipelined

    async def talk() -> tuple[list[bytes], int]:
        client = Client()
        client.protocol.proven = proven
        client.protocol.data_received(post("/", b"x") * 500)
        queued = len(client.protocol.pipeline)
        return await client.answers(most + 1), queued

    answers, queued = asyncio.run(talk())
    assert queued == most
    assert len(answers) == most + 1
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert b"connection: close" in answers[-1]


def test_a_read_of_whole_requests_and_the_begin_of_another_is_no_endless_head() -> None:
    whole = post("/", b"x" * LIMITS.head_bytes)
    answers = conversation(whole * 2 + b"POST /", b"end HTTP/1.1\r\nHost: s\r\n\r\n", count=3)
    assert [answer[9:12] for answer in answers] == [b"200"] * 3


def test_reading_pauses_until_pipelined_requests_are_answered() -> None:
    go = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()
        await echo(scope, receive, send)

    async def talk() -> None:
        client = Client(app=slow)
        client.protocol.data_received(post("/", b"x") * 3)
        assert client.paused
        first = client.protocol.cycle
        assert first is not None
        go.set()
        await until(lambda: client.received.count(b"HTTP/1.1 200") == 1)
        assert len(await client.answers(3)) == 3
        assert not client.paused

    asyncio.run(talk())


def test_connections_beyond_the_limit_are_answered_503_and_closed() -> None:
    async def talk() -> list[tuple[bool, bytes]]:
        state = ServerState()
        clients = [Client(state) for _ in range(5)]
        await asyncio.sleep(0)
        return [(client.closed, client.received[:13]) for client in clients]

    assert asyncio.run(talk()) == [(False, b"")] * 3 + [(True, b"HTTP/1.1 503 ")] * 2


class Timers:
    """Records what `call_later` is asked for, and passes everything else to the real loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.timers: list[tuple[float, Callable[[], None], asyncio.TimerHandle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        handle = self._loop.call_later(3600, call)
        self.timers.append((delay_s, call, handle))
        return handle

    def fire(self, delay_s: float) -> int:
        due = [t for t in self.timers if t[0] == delay_s and not t[2].cancelled()]
        for _, call, handle in due:
            handle.cancel()
            call()
        return len(due)


async def on_timers(pieces: Sequence[bytes]) -> tuple[Client, Timers]:
    client = Client()
    timers = Timers(asyncio.get_running_loop())
    loop: Any = timers
    client.protocol.loop = loop
    await client.send(*pieces)
    await until(lambda: not client.paused)  # a slow machine parses the last piece a turn later
    return client, timers


@pytest.mark.parametrize("piece", [b"G", b"GET / HTTP/1.1\r\nHost", b"\r\n"])
def test_a_head_that_takes_too_long_is_answered_408_and_closed(piece: bytes) -> None:
    async def talk() -> None:
        client, timers = await on_timers([piece])
        assert timers.fire(LIMITS.head_timeout_s) == 1
        assert client.received.startswith(b"HTTP/1.1 408 ")
        assert client.closed

    asyncio.run(talk())


def test_a_whole_head_ends_the_time_for_it() -> None:
    async def talk() -> None:
        client, timers = await on_timers([b"POST / HTTP/1.1\r\nContent-Le", b"ngth: 5\r\n\r\n"])
        assert timers.fire(LIMITS.head_timeout_s) == 0
        client.protocol.data_received(b"abcde")
        assert (await client.answers(1))[0].endswith(b"POST / abcde")

    asyncio.run(talk())


def local_answer(*headers: bytes, version: bytes = b"1.1") -> bytes:
    """Return the answer of a server on a loopback address without tokens."""

    async def talk() -> bytes:
        client = Client()
        client.protocol.local_only = True
        lines = (b"POST /a HTTP/" + version, b"Content-Length: 0", *headers)
        await client.send(b"\r\n".join(lines) + b"\r\n\r\n")
        return (await client.answers(1))[0]

    return asyncio.run(talk())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((b"Host: evil.example",), 403),
        ((b"Host: evil.example:8080", b"Origin: http://evil.example:8080"), 403),
        ((b"Host: localhost:8080", b"Origin: http://evil.example"), 403),
        ((b"Host: localhost:8080", b"Origin: null"), 403),
        ((b"Host: 10.0.0.1:8080",), 403),
        ((b"Host: [::1", b"Origin: http://[::1"), 403),
        ((b"Origin: http://evil.example",), 403),
        ((b"Host: localhost:8080",), 200),
        ((b"Host: 127.0.0.1:8080", b"Origin: http://127.0.0.1:8080"), 200),
        ((b"Host: [::1]:8080",), 200),
        ((b"Host: localhost",), 200),
    ],
)
def test_only_pages_of_this_machine_are_answered_where_no_request_needs_a_token(
    headers: tuple[bytes, ...], status: int
) -> None:
    assert local_answer(*headers).startswith(b"HTTP/1.1 %d " % status)
    assert local_answer(version=b"1.0").startswith(b"HTTP/1.1 200"), "a probe without a host"


def test_only_a_server_on_a_loopback_address_without_tokens_looks_at_the_host() -> None:
    assert ListenSettings().local_only and ListenSettings("::1").local_only
    for other in (
        ListenSettings("0.0.0.0", anyone=True),
        ListenSettings(anyone=True),
        ListenSettings(tokens=["a token of sixteen characters"]),
    ):
        assert not other.local_only


@pytest.mark.parametrize(
    "target",
    [*(b"GET " + each for each in (b"http://%/a", b"http://[/a", b"/\xff", b"http://\xff/a")),
     b"CONNECT server:80"],
)  # fmt: skip
def test_a_request_target_that_is_no_address_is_answered_without_an_error(target: bytes) -> None:
    [answer] = conversation(target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 200"))


def _head_of(count: int, size: int) -> bytes:
    fields = b"".join(b"X-%d: %s\r\n" % (i, b"a" * size) for i in range(count))
    return b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n" + fields + b"\r\n"


@pytest.mark.parametrize(("count", "size"), [(LIMITS.headers + 1, 1), (5, 500)])
def test_a_complete_head_or_trailers_beyond_a_limit_are_refused_as_unfinished_ones_are(
    count: int, size: int
) -> None:
    [answer] = conversation(_head_of(count - 1, size))  # has a field more
    assert answer.startswith(b"HTTP/1.1 431"), "too many headers, or too many bytes"
    trailers = b"".join(b"T-%d: %s\r\n" % (i, b"a" * size) for i in range(count))
    head = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    answers = conversation(head + b"1\r\na\r\n0\r\n" + trailers + b"\r\n")
    assert [each[:12] for each in answers] in ([b"HTTP/1.1 431"], [])
