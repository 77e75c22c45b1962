"""The fast path: a request in one piece gets the same answer as by way of ASGI."""

import asyncio
import itertools
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.runtime.http.bounded_protocol import BoundedProtocol
from headrace.runtime.http.server import SingleWriteProtocol
from headrace.serving.api.fast_path import FastPathProtocol
from headrace.serving.api.fast_path_probe import choose_protocol
from tests.effort import examples
from tests.memory_connection import until
from tests.serving.api.app_client import Connection, posted, serving
from tests.serving.served_models import Serving


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
}


SERVING = [serving(), serving(aside_bytes=1)]


def answers(kind: type[SingleWriteProtocol], server: Serving, pieces: Sequence[bytes]) -> bytes:
    async def ask() -> bytes:
        connection = Connection(kind, server)
        await connection.send(*pieces)
        return await connection.answered()

    return asyncio.run(ask())


@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(st.sampled_from(sorted(REQUESTS)), min_size=1, max_size=4),
    st.lists(st.floats(0.0, 1.0), max_size=4),
    st.sampled_from(SERVING),
)
def test_the_fast_path_and_asgi_answer_alike_however_requests_are_cut_and_pipelined(
    names: list[str], cuts: list[float], server: Serving
) -> None:
    sent = b"".join(REQUESTS[name] for name in names)
    at = [0, *sorted(int(cut * len(sent)) for cut in cuts), len(sent)]
    pieces = [sent[i:j] for i, j in itertools.pairwise(at) if i < j]
    expected = answers(SingleWriteProtocol, server, pieces)
    assert expected.startswith(b"HTTP/1.1 ")
    assert answers(FastPathProtocol, server, pieces) == expected
    assert answers(FastPathProtocol, server, [sent]) == expected


def test_the_fast_path_and_asgi_answer_alike_each_kind_of_request() -> None:
    statuses = {}
    for name, request in REQUESTS.items():
        expected = answers(SingleWriteProtocol, SERVING[0], [request])
        assert answers(FastPathProtocol, SERVING[0], [request]) == expected, name
        statuses[name] = int(expected[9:12])
    assert statuses["predict"] == statuses["last"] == statuses["chunked"] == 200
    refused = ("packed", "no object", "unknown", "long", "stranger", "got")
    assert [statuses[each] for each in refused] == [415, 422, 404, 413, 401, 405]


def test_only_requests_in_one_piece_bypass_asgi() -> None:
    async def ask(pieces: Sequence[bytes]) -> tuple[bytes, int]:
        connection = Connection(FastPathProtocol, SERVING[0])
        app, calls = connection.protocol.app, 0

        async def counting(*how: Any) -> None:
            nonlocal calls
            calls += 1
            await app(*how)

        connection.protocol.app = counting
        await connection.send(*pieces)
        return await connection.answered(), calls

    whole, past = asyncio.run(ask([ONE]))
    cut, by_way = asyncio.run(ask([ONE[:-1], ONE[-1:]]))
    assert (past, by_way) == (0, 1)
    assert whole == cut
    assert whole.startswith(b"HTTP/1.1 200")


@settings(deadline=None, max_examples=examples(50))
@given(st.floats(0.0, 1.0), st.integers(0, 4), st.sampled_from(SERVING))
def test_a_request_whose_client_disconnects_gives_up_its_place(
    cut: float, turns: int, server: Serving
) -> None:
    async def leave() -> None:
        connection = Connection(FastPathProtocol, server)
        connection.protocol.data_received((ONE + ONE)[: 1 + int(cut * 2 * len(ONE))])
        for _ in range(turns):
            await asyncio.sleep(0)
        connection.protocol.connection_lost(None)
        said = connection.received
        await until(lambda: not connection.state.tasks and under_way(server) == 0)
        assert connection.received == said

    asyncio.run(leave())


def under_way(server: Serving) -> float | None:
    return server.registry.get_sample_value("headrace_server_requests_under_way")


def test_an_error_of_the_server_is_logged_and_answered_with_500_and_close(
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


def test_a_shutdown_finishes_the_request_of_a_connection() -> None:
    async def ask() -> tuple[bytes, bytes, bool]:
        connection = Connection(FastPathProtocol, SERVING[0])
        connection.protocol.data_received(ONE)
        before = connection.received
        connection.protocol.shutdown()
        return before, await connection.answered(), connection.closed

    before, said, closed = asyncio.run(ask())
    assert before == b""
    assert said.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in said
    assert closed


def test_a_client_that_does_not_read_gets_its_next_answer_when_it_reads_again() -> None:
    async def ask() -> tuple[bytes, bytes]:
        connection = Connection(FastPathProtocol, SERVING[0])
        connection.protocol.pause_writing()
        connection.protocol.data_received(ONE)
        for _ in range(20):
            await asyncio.sleep(0)
        before = connection.received
        connection.protocol.resume_writing()
        return before, await connection.answered()

    before, said = asyncio.run(ask())
    assert before == b""
    assert said.startswith(b"HTTP/1.1 200")


def test_invalid_http_in_the_middle_of_a_request_gets_400() -> None:
    broken = CHUNKED.replace(b"\r\n0\r\n\r\n", b"\r\nnonsense\r\n\r\n")
    assert answers(FastPathProtocol, SERVING[0], [broken]).startswith(b"HTTP/1.1 400")


def test_a_request_on_the_fast_path_leaves_the_bounds_of_its_connection_as_with_asgi() -> None:
    async def ask(kind: type[SingleWriteProtocol]) -> list[object]:
        connection = Connection(kind, SERVING[0])
        protocol, found = connection.protocol, list[object]()
        for _ in range(3):
            connection.protocol.data_received(ONE)
            await until(lambda: protocol.cycle.response_complete)
            bounds = protocol._in_head, protocol._idle_bytes
            found.append((*bounds, protocol._head_timer))
        await connection.answered()
        return found

    nothing_pending = (False, 0, None)
    assert asyncio.run(ask(FastPathProtocol)) == [nothing_pending] * 3
    assert asyncio.run(ask(SingleWriteProtocol)) == [nothing_pending] * 3


def test_the_fast_path_is_chosen_with_the_pinned_uvicorn(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_protocol() is FastPathProtocol
    assert caplog.text == ""


class Silent(FastPathProtocol):
    """As if uvicorn no longer called back at the end of a message."""

    def on_message_complete(self) -> None:
        pass


class Crashing(FastPathProtocol):
    """As if uvicorn had renamed an attribute."""

    def on_headers_complete(self) -> None:
        self.no_such_attribute  # type: ignore[attr-defined]  # noqa: B018


class Lossy(FastPathProtocol):
    """As if uvicorn no longer took over requests in several pieces."""

    def _hand_over(self) -> None:
        self._asked = None


@pytest.mark.parametrize("broken", [Silent, Crashing, Lossy])
def test_a_server_with_an_incompatible_uvicorn_warns_and_does_without_the_fast_path(
    broken: type[FastPathProtocol], caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_protocol(broken) is BoundedProtocol
    assert "the fast path does not work with uvicorn" in caplog.text
