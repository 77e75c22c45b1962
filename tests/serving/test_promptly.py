"""A request that came in one piece is answered past ASGI, and exactly as by way of it."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import logging
import time
from typing import TYPE_CHECKING, Any

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from headrace.ingest.http.server import SingleWriteProtocol
from headrace.serving.api.fast_path import FastPathProtocol
from headrace.serving.requests.limits import RequestLimits
from tests.serving.test_app import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from tests.serving.scenery import Serving

TOKEN = "a-token-of-this-test"


def posted(path: str, body: bytes, *lines: str, version: str = "1.1") -> bytes:
    head = [f"POST {path} HTTP/{version}", "Host: server", f"Authorization: Bearer {TOKEN}", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def asked(**more: Any) -> bytes:
    rows = [{"article_id": i, "impression_id": f"i{i}"} for i in range(3)]
    return json.dumps({"candidates": rows, **more}).encode()


PREDICT, RANK = "/v1/models/news:predict", "/v1/models/news:rank"
ONE = posted(PREDICT, asked())
CHUNKED = ONE.split(b"Content-Length", maxsplit=1)[0] + (
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(asked()), asked())
)
REQUESTS = {
    "predict": ONE,
    "rank": posted(RANK, asked(top_k=2)),
    "last": posted(RANK, asked(), "Connection: close"),
    "chunked": CHUNKED,
    "patient": posted(PREDICT, asked(), "Expect: 100-continue"),
    "old": posted(PREDICT, asked(), version="1.0"),
    "upgrade": posted(PREDICT, asked(), "Connection: upgrade", "Upgrade: h2c"),
    "queried": posted(f"{PREDICT}?a=b", asked()),
    "escaped": posted("/v1/models/ne%77s:predict", asked()),
    "packed": posted(PREDICT, asked(), "Content-Encoding: gzip"),
    "plain": posted(PREDICT, asked(), "Content-Encoding: identity"),
    "no object": posted(PREDICT, b"[1, 2"),
    "nothing": posted(PREDICT, b""),
    "unknown": posted("/v1/models/sports:predict", asked()),
    "another verb": posted("/v1/models/news:guess", asked()),
    "nameless": posted("/v1/models/:predict", asked()),
    "long": posted(PREDICT, asked(request_id="x" * 5_000)),
    "stranger": ONE.replace(b"Bearer", b"Basic"),
    "got": b"GET /v1/models/news:predict HTTP/1.1\r\nHost: server\r\n\r\n",
    "health": b"GET /health/live HTTP/1.1\r\nHost: server\r\n\r\n",
    "tensors": posted("/v2/models/news/infer", b"{}"),
}


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
        """Send these one after the other, each as soon as it is read."""
        for piece in pieces:
            await until(lambda: self.closed or not self.paused)
            if not self.closed:
                self.protocol.data_received(piece)
            await asyncio.sleep(0)

    async def answered(self) -> bytes:
        """Return all that was said once there is nothing more to say."""
        protocol = self.protocol
        await until(
            lambda: self.closed or (protocol.cycle.response_complete and not protocol.pipeline)
        )
        await asyncio.sleep(0)  # what was written is sent in a moment
        protocol.connection_lost(None)
        await until(lambda: not self.state.tasks)
        return self.told


async def until(true: Callable[[], object]) -> None:
    deadline, turns = time.monotonic() + 60.0, 0
    while not true():
        assert time.monotonic() < deadline, "did not come true in time"
        turns += 1
        await asyncio.sleep(0 if turns < 100 else 0.001)  # by and by the thread aside needs a turn


def serving(**limits: Any) -> Serving:
    made, _ = complete(limits=RequestLimits(body_bytes=4_000, **limits), tokens=[TOKEN])
    return made


SERVING = [serving(), serving(aside_bytes=1)]


def answers(kind: type[SingleWriteProtocol], server: Serving, pieces: Sequence[bytes]) -> bytes:
    async def ask() -> bytes:
        connection = Connection(kind, server)
        await connection.send(pieces)
        return await connection.answered()

    return asyncio.run(ask())


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from(sorted(set(REQUESTS) - {"upgrade"})), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 1.0), max_size=4),
    st.sampled_from(SERVING),
)
def test_both_ways_say_the_same_however_requests_are_cut_and_queued(
    names: list[str], cuts: list[float], server: Serving
) -> None:
    sent = b"".join(REQUESTS[name] for name in names)
    at = [0, *sorted(int(each * len(sent)) for each in cuts), len(sent)]
    pieces = [sent[i:j] for i, j in itertools.pairwise(at) if i < j]
    expected = answers(SingleWriteProtocol, server, pieces)
    assert expected.startswith(b"HTTP/1.1 ")
    assert answers(FastPathProtocol, server, pieces) == expected
    assert answers(FastPathProtocol, server, [sent]) == expected


def test_each_request_gets_the_same_from_both_ways_whole() -> None:
    for name, request in REQUESTS.items():
        expected = answers(SingleWriteProtocol, SERVING[0], [request])
        assert answers(FastPathProtocol, SERVING[0], [request]) == expected, name
    statuses = {
        name: int(answers(FastPathProtocol, SERVING[0], [request])[9:12])
        for name, request in REQUESTS.items()
    }
    assert statuses["predict"] == statuses["last"] == statuses["chunked"] == 200
    refused = ("packed", "no object", "unknown", "long", "stranger", "got")
    assert [statuses[each] for each in refused] == [415, 422, 404, 413, 401, 404]


def test_what_is_whole_goes_past_asgi_and_what_is_not_goes_by_way_of_it() -> None:
    async def ask(pieces: Sequence[bytes]) -> tuple[bytes, int]:
        connection = Connection(FastPathProtocol, SERVING[0])
        app, calls = connection.protocol.app, 0

        async def counting(*how: Any) -> None:
            nonlocal calls
            calls += 1
            await app(*how)

        connection.protocol.app = counting
        await connection.send(pieces)
        return await connection.answered(), calls

    whole, past = asyncio.run(ask([ONE]))
    cut, by_way = asyncio.run(ask([ONE[:-1], ONE[-1:]]))
    assert (past, by_way) == (0, 1)
    assert whole == cut
    assert whole.startswith(b"HTTP/1.1 200")


@settings(deadline=None, max_examples=50)
@given(st.floats(0.0, 1.0), st.integers(0, 4), st.sampled_from(SERVING))
def test_a_client_that_goes_away_leaves_room_for_others(
    cut: float, turns: int, server: Serving
) -> None:
    async def leave() -> None:
        connection = Connection(FastPathProtocol, server)
        connection.protocol.data_received((ONE + ONE)[: 1 + int(cut * 2 * len(ONE))])
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.protocol.connection_lost(None)
        said = connection.told
        await until(lambda: not connection.state.tasks and under_way(server) == 0)
        assert connection.told == said

    asyncio.run(leave())


def under_way(server: Serving) -> float | None:
    return server.registry.get_sample_value("headrace_server_requests_under_way")


def test_an_error_of_ours_is_told_and_logged_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = serving()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(server.predictor, "predict", fail)
    with caplog.at_level(logging.ERROR, "uvicorn.error"):
        said = answers(FastPathProtocol, server, [ONE])
    expected = answers(SingleWriteProtocol, server, [ONE])
    assert sorted(said.split(b"\r\n")) == sorted(expected.split(b"\r\n"))
    assert said.startswith(b"HTTP/1.1 500")
    assert b"connection: close" in said
    assert "a mistake" in caplog.text
    assert under_way(server) == 0


def test_a_server_that_leaves_finishes_what_is_under_way() -> None:
    async def ask() -> tuple[bytes, bytes, bool]:
        connection = Connection(FastPathProtocol, SERVING[0])
        connection.protocol.data_received(ONE)
        before = connection.told
        connection.protocol.shutdown()
        return before, await connection.answered(), connection.closed

    before, said, closed = asyncio.run(ask())
    assert before == b""
    assert said.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in said
    assert closed


def test_who_does_not_read_its_answers_gets_no_more_of_them() -> None:
    async def ask() -> tuple[bytes, bytes]:
        connection = Connection(FastPathProtocol, SERVING[0])
        connection.protocol.pause_writing()
        connection.protocol.data_received(ONE)
        for _ in range(20):
            await asyncio.sleep(0)
        before = connection.told
        connection.protocol.resume_writing()
        return before, await connection.answered()

    before, said = asyncio.run(ask())
    assert before == b""
    assert said.startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_refused_also_in_the_middle_of_a_request() -> None:
    broken = CHUNKED.replace(b"\r\n0\r\n\r\n", b"\r\nnonsense\r\n\r\n")
    assert answers(FastPathProtocol, SERVING[0], [broken]).startswith(b"HTTP/1.1 400")
