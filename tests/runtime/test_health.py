"""The health of a process: live while it makes progress, ready once it does its work."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from headrace.deploy.local.services.ports import free_port
from headrace.runtime.health import ProcessHealth
from headrace.runtime.process import running_process


class Scene:
    """A process whose clock and backlog a test sets."""

    def __init__(self) -> None:
        self.now_s, self.done, self.lag = 1000.0, 0, 0
        self.health = ProcessHealth(120.0, lambda: self.now_s)

    def watched(self) -> Scene:
        self.health.watch(lambda: self.done, lambda: self.lag > 0)
        return self

    def pass_s(self, seconds: float, *, stepping: bool = True) -> None:
        """Let time pass."""
        self.now_s += seconds
        if stepping:
            self.health.stepped()


def test_a_process_that_starts_is_live_and_not_ready() -> None:
    scene = Scene()
    scene.now_s += 10_000
    assert scene.health.why_not_live() == ""
    assert scene.health.why_not_ready() == "starting"
    scene.health.stepped()
    assert scene.health.why_not_ready() == ""


def test_a_loop_that_hangs_is_not_live() -> None:
    scene = Scene()
    scene.health.stepped()
    scene.pass_s(119, stepping=False)
    assert scene.health.why_not_live() == ""
    scene.pass_s(2, stepping=False)
    assert scene.health.why_not_live() == "no step of the loop ended for 121 s"


def test_a_backlog_without_progress_is_not_live() -> None:
    scene = Scene().watched()
    scene.lag = 7
    scene.pass_s(121)
    assert "no progress for 121 s" in scene.health.why_not_live()
    scene.done += 1
    assert scene.health.why_not_live() == ""


def test_an_idle_process_stays_live_and_gets_the_full_time_for_a_new_backlog() -> None:
    scene = Scene().watched()
    scene.pass_s(100_000)
    assert scene.health.why_not_live() == ""
    scene.lag = 7
    scene.pass_s(119)
    assert scene.health.why_not_live() == ""
    scene.pass_s(2)
    assert scene.health.why_not_live() != ""


def answer(url: str) -> tuple[int, bytes]:
    """Return the status and body of a GET."""
    try:
        with urllib.request.urlopen(url) as page:
            return page.status, page.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_metrics_and_health_are_on_one_port_and_other_paths_are_missing() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with running_process("test", None, CollectorRegistry(), ("127.0.0.1", port)) as health:
        assert answer(f"{url}/health/live") == (200, b'{"live": true}')
        status, body = answer(f"{url}/health/ready")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "starting"})
        health.stepped()
        assert answer(f"{url}/health/ready") == (200, b'{"ready": true}')
        assert answer(f"{url}/metrics")[0] == 200
        for path in ("/", "/health", "/healthz", "/health/other", "/metricsx"):
            assert answer(url + path)[0] == 404


@pytest.mark.parametrize("ready", [True, False])
def test_a_process_is_ready_when_all_its_work_is_ready(ready: bool) -> None:
    health = ProcessHealth()
    health.stepped()
    health.ready_when(lambda: ready)
    assert (health.why_not_ready() == "") is ready


def test_a_stalled_watch_is_noticed_beside_one_that_makes_progress() -> None:
    scene, other = Scene().watched(), [0]
    scene.health.watch(lambda: other[0], lambda: True)
    for _ in range(3):
        scene.done += 1
        scene.pass_s(50)
        live = scene.health.why_not_live() == ""
    assert not live
    other[0] += 1
    assert scene.health.why_not_live() == ""
