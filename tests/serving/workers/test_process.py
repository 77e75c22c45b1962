"""A server of several processes, run as a command: parts of it or all of it are killed."""

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from headrace.deploy.local.services.ports import free_port, take_port
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.redis_backend.redis_store import open_store
from headrace.pserver.store import Shape
from headrace.serving.models.loading import StoreModel
from tests.deploy.command import Running
from tests.deploy.command import running as command
from tests.deploy.in_process import Commands
from tests.serving.replicas.snapshots import learned, snapshot_of
from tests.serving.served_models import (
    BUCKETS,
    SPEC,
    Pusher,
    deltas_of_article,
    deltas_of_ids,
    eventually,
    news,
)
from tests.serving.server_in_thread import ready, running

ARTICLES = [f"article-{each}" for each in range(40)]
ASKED: dict[str, Any] = {"candidates": [{"article_id": each} for each in ARTICLES]}


class Asking:
    """Requests from several threads within the context."""

    def __init__(self, url: str) -> None:
        self._url, self._ended = url, threading.Event()
        self.answered = 0
        self.refused: list[str] = []
        self.lost: list[httpx.TransportError] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(4)]

    def __enter__(self) -> "Asking":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join(60)

    def more(self) -> None:
        """Wait until more requests were answered."""
        before = self.answered
        eventually(lambda: self.answered > before + 20)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._ended.wait(0.03):
                try:
                    answer = client.post("/v1/models/production:predict", json=ASKED)
                except httpx.TransportError as error:
                    self.lost.append(error)
                    continue
                if answer.status_code == 200:
                    self.answered += 1
                else:
                    self.refused.append(answer.text)


def predicted(url: str, model: str) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/models/{model}:predict", json=ASKED, timeout=60)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def scores(url: str, model: str) -> list[float]:
    return [each["score"] for each in predicted(url, model)["predictions"]]


def folder_of(served: Running) -> Path:
    return Path(served.wait_for(r"sharing rows in (\S+)").group(1))


def kill(served: Running, member: str, number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to the current process `member`; return its id."""
    *_, pid = re.findall(rf"{member} is process (\d+)", served.output)
    psutil.Process(int(pid)).send_signal(number)
    return int(pid)


def again(served: Running, member: str, pid: int) -> None:
    """Wait until `member` is another process."""
    eventually(lambda: re.findall(rf"{member} is process (\d+)", served.output)[-1] != str(pid))


def test_workers_answer_like_one_process_and_survive_kills_of_any_process(
    valkey: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    name = fresh_name("shared")
    spec = parse_spec(SPEC.replace('"news"', f'"{name}"'), "news.toml")
    (tmp_path / "spec.toml").write_text(spec.text)
    with contextlib.closing(open_store(valkey, name)) as store:
        store.create(Shape(name, BUCKETS, spec.width, spec.fingerprint, spec.text))
        pusher = Pusher(store)
        pusher.push(deltas_of_article(spec, ARTICLES[0], -3.0))
        run = ("serving", "run", "--model", str(tmp_path / "spec.toml"), "--redis", valkey)
        several = ("--workers", "2", "--port", "0", "--alias", f"production={name}")
        unshed = ("--waiting-ms", "60000")  # even on a slow machine
        with (
            running([StoreModel(spec, store)]) as alone,
            command(*run, *several, *unshed) as served,
        ):
            url = served.wait_for(r"serving \S+ on (http://127\.0\.0\.1:\d+)").group(1)
            folder = folder_of(served)
            served.wait_for("all workers answer")
            served.wait_for(r"INFO +follower: headrace\.runtime\.process: server started")
            eventually(lambda: ready(url) and ready(alone.url))

            def equal() -> None:
                version = predicted(alone.url, name)["version"]
                eventually(lambda: predicted(url, name)["version"] >= version)
                assert scores(url, name) == scores(alone.url, name)

            equal()
            with Asking(url) as asking:
                for _ in range(3):  # so many that tables grow, and workers change over
                    _learn(pusher, spec)
                    asking.more()
                _caught_up(alone.url, name, pusher)
                equal()
                assert len(list(folder.glob(f"{name}.rows.*"))) == 1
                assert len(list(folder.glob(f"{name}.board"))) == 1
                assert not asking.lost
                again(served, "worker 1", kill(served, "worker 1"))
                asking.more()
                _lose_the_follower(served, url, name, asking)
                pusher.push(deltas_of_article(spec, ARTICLES[1], 2.0))
                _caught_up(alone.url, name, pusher)
                equal()
                asking.more()
            assert not asking.refused
            # what the killed worker was at: one request of each thread, no more
            assert len(asking.lost) <= 4
            status, left = served.stop()
            assert (status, left) == (0, [])
            assert not folder.exists()


def _learn(pusher: Pusher, spec: ModelSpec) -> None:
    """Push a few thousand rows, some of which requests read."""
    random = np.random.default_rng(pusher.offset)
    pusher.push(deltas_of_ids(np.unique(random.integers(1, 2**63, 4000, np.uint64)), 0.5))
    for each in ARTICLES[:5]:
        pusher.push(deltas_of_article(spec, each, float(random.normal())))


def _caught_up(url: str, name: str, pusher: Pusher) -> None:
    """Wait until a server has all pushed rows."""
    eventually(lambda: predicted(url, name)["version"] >= BUCKETS * pusher.offset)


def _lose_the_follower(served: Running, url: str, name: str, asking: Asking) -> None:
    """Kill the follower, and prevent a restart until answers have become stale."""
    lost = len(asking.lost)
    served.process.send_signal(signal.SIGSTOP)
    try:
        pid = kill(served, "follower")
        eventually(lambda: predicted(url, name)["state"] == "behind")
        first = predicted(url, name)["age_ms"]["oldest"]
        eventually(lambda: predicted(url, name)["age_ms"]["oldest"] > first)
    finally:
        served.process.send_signal(signal.SIGCONT)
    again(served, "follower", pid)
    eventually(lambda: predicted(url, name)["state"] == "fresh")
    assert len(asking.lost) == lost


def free_ports(count: int) -> int:
    """Return the first of several consecutive free ports."""
    while True:
        first = free_port()
        if all(take_port(first + each) for each in range(1, count)):
            return first


@contextlib.contextmanager
def two_workers(tmp_path: Path, *more: str) -> Iterator[Running]:
    snapshot_of(learned(news()), tmp_path)
    run = ("serving", "run", "--snapshot", f"frozen={tmp_path}", "--port", "0", "--workers", "2")
    with command(*run, *more) as served:
        yield served


@pytest.mark.long
def test_workers_share_a_snapshot_and_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    first = free_ports(3)
    ports = ("--metrics-port", str(first))
    with two_workers(tmp_path, "--alias", "production=frozen", *ports) as served:
        url = served.wait_for(r"serving \S+ on (http://127\.0\.0\.1:\d+)").group(1)
        folder = folder_of(served)
        served.wait_for("all workers answer")
        eventually(lambda: ready(url))
        assert predicted(url, "production")["state"] == "snapshot"
        assert httpx.get(f"{url}/metrics", timeout=60).status_code == 404
        for each in range(3):
            text = httpx.get(f"http://127.0.0.1:{first + each}/metrics", timeout=60).text
            assert 'headrace_server_complete{model="frozen"} 1.0' in text.splitlines()
        assert httpx.put(f"{url}/v1/aliases/other", json={"model": "frozen"}).status_code == 200
        assert {predicted(url, "other")["alias"] for _ in range(30)} == {"other"}  # of any worker
        status, left = served.stop(signal.SIGKILL)
    assert (status, left) == (-signal.SIGKILL, [])
    assert not folder.exists()


def test_settings_that_several_workers_cannot_serve_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot_of(learned(news()), tmp_path)
    run = Commands(monkeypatch, capsys)
    several = ("serving", "run", "--snapshot", f"frozen={tmp_path}", "--workers", "2")
    bounded = run(*several, "--most-rows", "1000")
    assert bounded.code != 0 and "expected 1 with --most-rows" in bounded.err
    open_to_all = run(*several, "--host", "0.0.0.0")
    assert open_to_all.code != 0 and "--tokens" in open_to_all.err
