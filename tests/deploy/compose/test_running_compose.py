"""The Compose file starts every part; killed containers come back, and data outlives containers."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
import yaml

from headrace.runtime.clock import wall_ms
from tests.deploy.compose.build import compose_lacks
from tests.deploy.compose.engine import FILE, Engine, Project

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
_TEMPORARY = (429, 503)
_CHANGE = 0.1
"""Change of a score by 300 impressions of one item."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The services of the Compose file, whose server has answered once."""
    if reason := compose_lacks():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("compose")
    with Engine(folder) as engine:
        project = Project(engine, folder)
        try:
            began_s = time.monotonic()
            project.up()
            up_s = time.monotonic() - began_s
            project.wait(lambda: _score(project, "first") is not None, "a prediction")
            first_s = time.monotonic() - began_s
            print(f"`up` took {up_s:.1f} s; the first prediction came after {first_s:.1f} s")
            yield project
        finally:
            project.compose("down", "--volumes", "--timeout", "5")


def test_jobs_end_before_the_processes_that_need_them_start(project: Project) -> None:
    jobs = [project.state(each)["State"] for each in ("topics", "model")]
    assert [each["ExitCode"] for each in jobs] == [0, 0]
    ended = max(each["FinishedAt"] for each in jobs)
    for service in project.ours:
        assert project.state(service)["State"]["StartedAt"] > ended, service


def test_health_checks_of_the_servers_succeed(project: Project) -> None:
    for service in ("kafka", "valkey"):
        assert project.state(service)["State"]["Health"]["Status"] == "healthy"


def test_events_of_the_collector_change_the_predictions_of_the_server(project: Project) -> None:
    assert_learns(project, "from the collector")


def test_prometheus_scrapes_every_process_and_reads_the_rules(project: Project) -> None:
    address = f"http://{project.address('prometheus')}:9090/api/v1"

    def up() -> set[str]:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{address}/query", params={"query": "up == 1"}, timeout=10)
            series = answer.json()["data"]["result"]
            return {each["metric"]["job"].removeprefix("headrace-") for each in series}
        return set()

    project.wait(lambda: up() == set(project.ours), f"metrics of {project.ours}")
    groups = httpx.get(f"{address}/rules", timeout=10).json()["data"]["groups"]
    rules = yaml.safe_load((FILE.parent / "../monitoring/rules.yml").read_text())["groups"]
    assert sum(len(each["rules"]) for each in groups) == sum(len(each["rules"]) for each in rules)


@pytest.mark.parametrize("service", ["learner", "server", "joiner", "valkey", "kafka"])
def test_a_killed_container_comes_back_and_learning_continues(
    project: Project, service: str
) -> None:
    project.kill(service)
    assert_learns(project, f"after the end of {service}")


def test_stopped_processes_end_well_and_data_outlives_the_containers(project: Project) -> None:
    learned = _answer(project, "from the collector")
    assert learned is not None
    project.compose("stop", "--timeout", "120")
    assert {
        each: project.state(each)["State"]["ExitCode"] for each in project.ours
    } == dict.fromkeys(project.ours, 0)
    project.compose("down")
    project.up()
    project.wait(lambda: _score(project, "from the collector") is not None, "a prediction")
    found = _answer(project, "from the collector")
    assert found is not None
    assert found["version"] >= learned["version"] > 0  # that of a new model is 0
    assert_learns(project, "after a new start")


def assert_learns(project: Project, item: str) -> None:
    """Show an item, with clicks if its score is low, until its score has changed as it should."""
    project.wait(lambda: _score(project, item) is not None, "a prediction")
    before = _score(project, item)
    assert before is not None
    rises = before < 0.5
    _send(project, item, clicked=rises)

    def changed() -> bool:
        score = _score(project, item)
        if score is None:
            return False
        return score > before + _CHANGE if rises else score < before - _CHANGE

    direction = "higher" if rises else "lower"
    project.wait(changed, f"a score of {item!r} {direction} than {before:.3f} by {_CHANGE}")


def _send(project: Project, item: str, *, clicked: bool) -> None:
    ids = [f"{item} {number}" for number in range(300)]
    shown_ms = wall_ms() - 1000
    shown = [
        {**_SHOWN, "item_id": item, "impression_id": each, "timestamp_ms": shown_ms} for each in ids
    ]
    clicks = [{"impression_id": each, "timestamp_ms": shown_ms + 500} for each in ids]
    for kind, events in (("impressions", shown), ("clicks", clicks if clicked else [])):

        def accepted(kind: str = kind, events: list[dict[str, Any]] = events) -> bool:
            answer = _post(project.collector_port, f"/v1/{kind}", events)
            return answer is not None and answer["accepted"] == len(events)

        if events:
            project.wait(accepted, f"an acknowledgement of {len(events)} {kind}")


_SHOWN = {"user_id": "u1", "device": "phone", "category": "sport", "position": 1}


def _score(project: Project, item: str) -> float | None:
    answer = _answer(project, item)
    return None if answer is None else answer["predictions"][0]["score"]


def _answer(project: Project, item: str) -> dict[str, Any] | None:
    body = {"context": _SHOWN, "candidates": [{"item_id": item}]}
    return _post(project.server_port, "/v1/models/demo:predict", body)


def _post(port: int, path: str, body: Any) -> dict[str, Any] | None:
    """Return the answer; None while the server is not ready."""
    try:
        answer = httpx.post(f"http://127.0.0.1:{port}{path}", json=body, timeout=10)
    except httpx.TransportError:
        return None
    if answer.status_code in _TEMPORARY:
        return None
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
