"""A running server: a real port, a real HTTP client, a clean shutdown."""

import socket
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from headrace.learner.spec.model_spec import parse_spec
from headrace.pserver.errors import MissingBucket, MissingModel, WrongModel
from headrace.pserver.memory_store import MemoryStore
from headrace.runtime.http.http_errors import AddressTaken
from headrace.runtime.http.token_files import TokenSource
from headrace.serving.models.loading import StoreModel
from headrace.serving.process import run_server
from tests.serving.served_models import (
    SPEC,
    Fallible,
    Pusher,
    deltas_of_article,
    eventually,
    memory_store,
    news,
)
from tests.serving.server_in_thread import SETTINGS, Running, at, ready, running


def test_a_push_changes_the_predictions_of_a_running_server() -> None:
    store = memory_store(news())
    asked = {"candidates": [{"article_id": "hot"}]}
    before = set(threading.enumerate())
    with running(store) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        eventually(lambda: ready(server.url))

        def score() -> float:
            answer = client.post("/v1/models/news:predict", json=asked)
            assert answer.status_code == 200
            return float(answer.json()["predictions"][0]["score"])

        first = score()
        Pusher(store).push(deltas_of_article(news(), "hot", -4.0))
        eventually(lambda: score() > first)
    assert set(threading.enumerate()) <= before


def test_a_stopping_server_is_unready_first_and_finishes_open_requests() -> None:
    settings = replace(SETTINGS, drain_ms=1_500)
    server = Running(memory_store(news()), settings)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        eventually(lambda: ready(server.url))
        server.stop.set()
        eventually(lambda: client.get("/health/ready").status_code == 503)
        answer = client.post("/v1/models/news:predict", json={"candidates": [{}]})
        assert answer.status_code == 200
        assert client.get("/health/ready").json()["leaving"] is True
    server.join()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, timeout=60)


def test_metrics_are_served_on_a_separate_port_if_configured() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = replace(SETTINGS, metrics_port=port, metrics_host="127.0.0.1")
    with running(memory_store(news()), settings) as server:
        eventually(lambda: ready(server.url))
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    assert 'headrace_server_complete{model="news"} 1.0' in text.splitlines()
    assert "process_resident_memory_bytes" in text
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_a_running_server_takes_new_tokens_of_clients_and_administrators(tmp_path: Path) -> None:
    old, new = "the-old-long-secret", "the-new-long-secret"
    clients, admins = TokenSource(file=tmp_path / "clients"), TokenSource(file=tmp_path / "admins")
    for each in (clients, admins):
        assert each.file is not None
        each.file.write_text(f"{old}\n")
    settings = replace(
        SETTINGS,
        tokens=[old],
        grants=clients.read(),
        tokens_from=clients,
        admin_tokens=[old],
        admin_grants=admins.read(),
        admin_tokens_from=admins,
    )
    with running(memory_store(news()), settings) as server:
        eventually(lambda: ready(server.url))

        def statuses(path: str, body: dict[str, object], method: str) -> list[int]:
            return [
                httpx.request(
                    *(method, server.url + path),
                    json=body,
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=60,
                ).status_code
                for token in (old, new)
            ]

        def of_clients() -> list[int]:
            return statuses("/v1/models/news:predict", {"candidates": [{}]}, "POST")

        def of_administrators() -> list[int]:
            return statuses("/v1/aliases/production", {"model": "news"}, "PUT")

        assert (of_clients(), of_administrators()) == ([200, 401], [200, 401])
        for each in (clients, admins):
            assert each.file is not None
            each.file.write_text(f"{new}\n\n")
        eventually(lambda: of_clients() == of_administrators() == [401, 200])


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stop = threading.Event()
        with pytest.raises(AddressTaken, match=rf"127\.0\.0\.1:{port}.*--port"):
            run_server(replace(SETTINGS, port=port), at(memory_store(news())), stop)


def test_a_server_stops_at_the_start_without_its_model_in_the_store() -> None:
    other = parse_spec(SPEC.replace("alpha = 0.5", "alpha = 0.1"), "news.toml")
    lost = Fallible(memory_store(news()))
    lost.failure = MissingBucket("bucket 1 of news is empty")
    empty = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"12345678")
    cases: list[tuple[list[StoreModel], type[Exception], str]] = [
        ([StoreModel(other, memory_store(news()))], WrongModel, r"\+alpha = 0\.1"),
        (at(lost), MissingBucket, "bucket 1"),
        (at(empty), MissingModel, "no model"),
    ]
    for models, error, said in cases:
        with pytest.raises(error, match=said):
            run_server(SETTINGS, models, threading.Event())
