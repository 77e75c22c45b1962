"""Tests that the client of the collector delivers every event, also after failed requests."""

import gzip
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.ingest.client import ClientSettings, CollectorClient, NotDelivered, UndeliverableEvent

FAST = ClientSettings(batch_events=10, linger_ms=5, first_wait_s=0.001, longest_wait_s=0.01)

Answer = tuple[int, dict[str, str], Any]
"""Status, headers, JSON."""


@dataclass
class Collector:
    """A collector that gives scripted answers, then accepts everything and records it."""

    scripted: list[Callable[[list[bytes]], Answer | None]] = field(default_factory=list)
    """Each answers one request, given its events; None breaks the connection."""
    accepted: list[tuple[str, str]] = field(default_factory=list)
    requests: int = 0
    tokens: set[str | None] = field(default_factory=set)
    url: str = ""
    called: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, events: list[bytes], token: str | None) -> Answer | None:
        self.requests += 1
        self.called.set()
        self.tokens.add(token)
        if self.scripted:
            scripted = self.scripted.pop(0)(events)
            if scripted is None or scripted[0] != 200:
                return scripted
        self.accept(path, events)
        return 200, {}, {"accepted": len(events), "refused": []}

    def accept(self, path: str, events: list[bytes]) -> None:
        self.accepted += [(path, json.loads(each)["impression_id"]) for each in events]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Content-Type"] == "application/x-ndjson"
            events = gzip.decompress(body).split(b"\n")
            answer = collector.answer(self.path, events, self.headers["Authorization"])
            if answer is None:
                self.close_connection = True
                return
            status, headers, text = answer
            encoded = json.dumps(text).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(encoded))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}/"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def event(i: int) -> dict[str, object]:
    return {"impression_id": f"e{i}", "timestamp_ms": 1_767_225_600_000, "n": i}


def test_the_client_delivers_every_event_in_order_in_batches_with_the_token() -> None:
    with collecting() as collector:
        with CollectorClient(collector.url, "the token", FAST) as client:
            for i in range(95):
                client.impression(event(i))
                if i % 10 == 0:
                    client.click(event(i))
        shown = [name for path, name in collector.accepted if path == "/v1/impressions"]
        clicked = [name for path, name in collector.accepted if path == "/v1/clicks"]
    assert shown == [f"e{i}" for i in range(95)]
    assert clicked == [f"e{i}" for i in range(0, 95, 10)]
    assert collector.requests < 60
    assert collector.tokens == {"Bearer the token"}


NOT_NOW: dict[str, Callable[[list[bytes]], Answer | None]] = {
    "full": lambda _: (429, {"Retry-After": "0"}, {"error": None}),
    "Kafka away": lambda _: (503, {"Retry-After": "0"}, {"accepted": 0, "refused": []}),
    "a proxy": lambda _: (502, {}, "bad gateway"),
    "broken off": lambda _: None,
    "a token not yet known": lambda _: (
        *(401, {}),
        {"error": {"field": "Authorization", "expected": "a token", "found": "another"}},
    ),
}


@pytest.mark.parametrize("name", NOT_NOW)
def test_the_client_sends_events_again_after_a_temporary_failure(name: str) -> None:
    with collecting() as collector:
        collector.scripted = [NOT_NOW[name]] * 3
        with CollectorClient(collector.url, settings=FAST) as client:
            for i in range(5):
                client.impression(event(i))
        assert [name for _, name in collector.accepted] == [f"e{i}" for i in range(5)]
        assert collector.requests >= 4


def test_the_client_waits_for_the_time_in_retry_after() -> None:
    with collecting() as collector:
        collector.scripted = [lambda _: (429, {"Retry-After": "3600"}, {})]
        client = CollectorClient(collector.url, settings=FAST)
        client.impression(event(0))
        assert collector.called.wait(60)
        with pytest.raises(NotDelivered, match=r"got 1 not: .*429") as raised:
            client.close(timeout_s=0.2)
        assert raised.value.events == 1
        assert collector.requests == 1
        assert collector.accepted == []


def test_the_client_resends_unacknowledged_events_only_and_reports_refused_ones() -> None:
    reported: list[UndeliverableEvent] = []

    def partly(events: list[bytes]) -> Answer:
        assert len(events) == 4
        collector.accept("/v1/impressions", [events[0], events[3]])
        reasons = {1: "bad_time", 2: "not_acknowledged"}
        refused = [
            {"index": i, "reason": reason, "field": "f", "expected": "x", "found": "y"}
            for i, reason in reasons.items()
        ]
        return 503, {"Retry-After": "0"}, {"accepted": 2, "refused": refused}

    with collecting() as collector:
        collector.scripted = [partly]
        settings = ClientSettings(batch_events=4, linger_ms=10_000, first_wait_s=0.001)
        with CollectorClient(collector.url, settings=settings, refused=reported.append) as client:
            for i in range(4):
                client.impression(event(i))
        counts = Counter(name for _, name in collector.accepted)
    assert counts == Counter(["e0", "e2", "e3"])
    assert [(json.loads(each.event)["n"], each.reason) for each in reported] == [(1, "bad_time")]


def test_the_client_halves_a_batch_that_is_too_large_until_it_finds_the_event() -> None:
    reported: list[UndeliverableEvent] = []

    def too_large(events: list[bytes]) -> Answer:
        if any(b'"n":5' in each for each in events):
            error = {"field": "", "expected": "a body of at most 9 bytes", "found": "more"}
            return 413, {}, {"accepted": 0, "refused": [], "error": error}
        return 200, {}, {}

    with collecting() as collector:
        collector.scripted = [too_large] * 20
        with CollectorClient(collector.url, settings=FAST, refused=reported.append) as client:
            for i in range(8):
                client.click(event(i))
        names = [name for _, name in collector.accepted]
    assert names == [f"e{i}" for i in range(8) if i != 5]
    assert [(json.loads(each.event)["n"], each.expected) for each in reported] == [
        (5, "a body of at most 9 bytes")
    ]


def test_a_full_queue_of_the_client_blocks_until_events_are_acknowledged() -> None:
    gate = threading.Event()

    def held(_: list[bytes]) -> Answer:
        assert gate.wait(60)
        return 200, {}, {}

    with collecting() as collector:
        collector.scripted = [held]
        settings = ClientSettings(batch_events=1, linger_ms=0, queue_events=2)
        client = CollectorClient(collector.url, settings=settings)
        client.impression(event(0))
        assert collector.called.wait(60)
        client.impression(event(1))
        third = threading.Thread(target=client.impression, args=(event(2),))
        third.start()
        with pytest.raises(NotDelivered, match="got 2 not"):
            client.flush(0.05)
        assert third.is_alive()
        gate.set()
        third.join(60)
        assert not third.is_alive()
        client.close()
        assert [name for _, name in collector.accepted] == ["e0", "e1", "e2"]


def test_threads_share_a_client_and_a_closed_client_accepts_no_event() -> None:
    with collecting() as collector:
        client = CollectorClient(collector.url, settings=FAST)

        def send(stem: int) -> None:
            for i in range(50):
                client.impression(event(1_000 * stem + i))

        threads = [threading.Thread(target=send, args=(stem,)) for stem in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.impression(event(1))
        names = Counter(name for _, name in collector.accepted)
    assert names == Counter(f"e{1_000 * stem + i}" for stem in range(6) for i in range(50))


def test_a_client_without_a_callback_logs_refused_events(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_: list[bytes]) -> Answer:
        entry = {"index": 0, "reason": "no_id", "field": "impression_id", "expected": "a string"}
        return 422, {}, {"accepted": 0, "refused": [{**entry, "found": "none"}]}

    with collecting() as collector, caplog.at_level(logging.ERROR):
        collector.scripted = [refuse]
        with CollectorClient(collector.url, settings=FAST) as client:
            client.impression(event(0))
    assert "impression_id: expected a string, got none" in caplog.text
