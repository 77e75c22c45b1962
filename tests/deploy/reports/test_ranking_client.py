"""The ranking client sends the requests of a log to a server and counts their results."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson
import pytest

from headrace.deploy.models.shipped import path_of
from headrace.deploy.reports.event_log import requests_of
from headrace.deploy.reports.ranking_client import RankingClient
from headrace.ingest.logs.ndjson import Line
from headrace.learner.spec.model_spec import load_spec

START_MS = 1_700_000_000_000
FIELDS = load_spec(path_of("news")).fields


def shown(name: str, request: str | None, article: str, user: str = "u") -> Line:
    event = {
        "impression_id": name,
        "request_id": request,
        "timestamp_ms": START_MS,
        "user_id": user,
        "article_id": article,
        "unread_by_the_model": 1,
    }
    return Line(START_MS, False, name.encode(), orjson.dumps(event))


def clicked(name: str) -> Line:
    return Line(START_MS, True, name.encode(), orjson.dumps({"impression_id": name}))


@dataclass
class Server:
    """A fake server; `statuses` are those of the next answers."""

    port: int = 0
    asked: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    """The `Authorization` of each request."""
    held: threading.Event | None = None
    """No request is answered while this event exists and is not set."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/models/production:rank"


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if server.held is not None:
                server.held.wait()
            server.asked.append(asked)
            server.tokens.append(self.headers["Authorization"])
            status = server.statuses.pop(0) if server.statuses else 200
            candidates = asked["candidates"]
            ranking = [
                {"index": i, "impression_id": each["impression_id"], "score": 0.1 * (i + 1)}
                for i, each in enumerate(candidates)
            ]
            body = orjson.dumps({"ranking": ranking[::-1]})
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except BrokenPipeError:
                self.close_connection = True  # the client has disconnected

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def test_a_ranking_request_has_shared_values_once_in_the_context() -> None:
    lines = [shown("a", "r", "1"), clicked("z"), shown("b", "r", "2"), shown("c", None, "3")]
    first, second = requests_of(lines, FIELDS)
    assert orjson.loads(first) == {
        "request_id": "r",
        "timestamp_ms": START_MS,
        "context": {"user_id": "u"},
        "candidates": [
            {"impression_id": "a", "article_id": "1"},
            {"impression_id": "b", "article_id": "2"},
        ],
    }
    assert len(orjson.loads(second)["candidates"]) == 1, (
        "an impression without a request is one of its own"
    )


def test_every_request_of_a_replayed_group_is_answered_before_its_events_are_sent() -> None:
    told: dict[str, float] = {}

    def tell(ids: list[str], scores: list[float]) -> None:
        told.update(zip(ids, scores, strict=True))

    with serving() as server, RankingClient(server.url, FIELDS, tell, patience_s=30.0) as client:
        client.ask([shown(f"{r}/{i}", f"r{r}", str(i)) for r in range(30) for i in range(2)], 0.0)
        assert len(told) == 60
        assert told["7/0"] == pytest.approx(0.1)
        assert told["7/1"] == pytest.approx(0.2)
    assert (client.stats.requests, client.stats.answered) == (30, 30)


def test_a_late_replay_skips_requests_and_counts_them() -> None:
    with serving() as server, RankingClient(server.url, FIELDS) as client:
        client.ask([shown("a", "r", "1"), shown("b", "s", "1")], late_s=0.6)
        client.ask([shown("c", "t", "1")], late_s=0.4)
    assert (client.stats.requests, client.stats.late, client.stats.answered) == (3, 2, 1)
    assert [each["request_id"] for each in server.asked] == ["t"]


def test_a_token_is_sent_with_each_request_if_there_is_one() -> None:
    for token, expected in (("", None), ("a-token", "Bearer a-token")):
        with serving() as server, RankingClient(server.url, FIELDS, token=token) as client:
            client.ask([shown("a", "r", "1"), shown("b", "s", "1")], 0.0)
        assert server.tokens == [expected, expected]


def test_a_request_to_an_overloaded_server_is_retried() -> None:
    with serving() as server, RankingClient(server.url, FIELDS) as client:
        server.statuses = [503, 503]
        client.ask([shown("a", "r", "1")], 0.0)
    assert client.stats.answered == 1
    assert len(server.asked) == 3


def refused(server: Server) -> None:
    server.statuses = [422]


def silent(server: Server) -> None:
    server.held = threading.Event()


def gone(server: Server) -> None:
    server.port = 1  # no server listens there


@pytest.mark.parametrize(
    ("amiss", "expected"), [(refused, (1, 0)), (silent, (0, 1)), (gone, (0, 1))]
)
def test_requests_without_an_answer_are_counted_within_the_deadline(
    amiss: Callable[[Server], None], expected: tuple[int, int]
) -> None:
    with serving() as server:
        amiss(server)
        with RankingClient(server.url, FIELDS, patience_s=0.2) as client:
            client.ask([shown("a", "r", "1")], 0.0)
        if server.held is not None:
            server.held.set()
    assert (client.stats.refused, client.stats.unanswered) == expected
    assert client.stats.answered == 0
