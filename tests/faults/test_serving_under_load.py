"""A server answers every request while parts behind it fail, and reports the age of its rows.

The whole pipeline runs as for `headrace run`, every part a process, under a load of events and
requests. Then a part is killed or paused. Answers must go on and report a growing age. Once the
part is back, they must become fresh again without intervention.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.local.services.services import LocalServices
from headrace.deploy.local.services.waiting import wait_until
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.runtime.clock import wall_ms
from tests.running_server import running_server
from tests.valkey_cluster import ValkeyCluster

SPEC = Path(__file__).parents[2] / "deploy" / "models" / "demo.toml"
EVENTS_PER_S, REQUESTS_PER_S = 300, 100
OLD_MS, FRESH_MS = 4_000, 3_000
"""Of the bucket that is furthest behind: with events all the time, it is below a second or so."""
RESTARTED_OLD_MS = 1_500
"""A killed learner is started again at once, and back within three seconds or so."""
WITHIN_S = 120.0


class Repeating:
    """Does something so many times a second, in a thread, as long as the block lasts."""

    def __init__(self, per_s: int) -> None:
        self._per_s, self._stop = per_s, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def once(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        due = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                self.once()
                due = max(due + 1 / self._per_s, time.monotonic() - 1)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Events(Repeating):
    """Sends events of a site."""

    def __init__(self, kafka: KafkaSettings) -> None:
        super().__init__(EVENTS_PER_S)
        self._writer, self._dice, self._sent = KafkaWriter(kafka), np.random.default_rng(3), 0

    def once(self) -> None:
        name, user = f"i{self._sent}", int(self._dice.integers(500))
        self._sent += 1
        event = {
            "impression_id": name,
            "timestamp_ms": wall_ms(),
            "user_id": f"u{user}",
            "item_id": f"item-{self._dice.zipf(1.5) % 300}",
            "category": f"c{user % 7}",
        }
        self._writer.send(Source("impressions", BY_KEY), orjson.dumps(event), name.encode())

    def stop(self) -> None:
        super().stop()
        self._writer.close()


class Requests(Repeating):
    """Sends requests and checks every answer."""

    def __init__(self, url: str) -> None:
        super().__init__(REQUESTS_PER_S)
        self._client = httpx.Client(base_url=url, timeout=5.0)
        self.failed: list[str] = []
        self.answered = 0
        self.last: dict[str, Any] = {}
        self.slowest_s = 0.0

    def once(self) -> None:
        body = {"context": {"user_id": "u1"}, "candidates": [{"item_id": f"item-{self.answered}"}]}
        began = time.monotonic()
        try:
            answer = self._client.post("/v1/models/demo:predict", json=body)
        except httpx.HTTPError as error:
            self.failed.append(repr(error))
            return
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer.status_code != 200:
            self.failed.append(f"{answer.status_code} {answer.text}")
            return
        self.answered += 1
        self.last = answer.json()

    @property
    def oldest_ms(self) -> float:
        """Age of the bucket furthest behind, as the last answer says."""
        oldest = self.last.get("age_ms", {}).get("oldest")
        return float("inf") if oldest is None else float(oldest)

    def stop(self) -> None:
        super().stop()
        self._client.close()


class Site:
    """A pipeline with its events and requests."""

    def __init__(self, machine: LocalServices, cluster: ValkeyCluster) -> None:
        self.machine, self.cluster = machine, cluster
        settings = PipelineSettings(
            model=SPEC, kafka=machine.kafka, redis=machine.redis, evaluate=False
        )
        self.pipeline = LocalPipeline(settings, SetupProgress())

    def expect(self, what: Callable[[], bool], said: str) -> None:
        def alive() -> bool:
            return self.events.error is None and self.requests.error is None

        found = wait_until(what, WITHIN_S, alive)
        assert found, f"expected {said}, found {self.requests.last} ({self.events.error!r})"

    def __enter__(self) -> Site:
        self.pipeline.__enter__()
        assert self.pipeline.start(threading.Event())
        self.events, self.requests = Events(self.pipeline.kafka), Requests(self.pipeline.address)
        self.events.start()
        self.requests.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.requests.stop()
        self.events.stop()
        self.pipeline.__exit__(None, None, None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with (
        running_server(ValkeyCluster(tmp_path_factory.mktemp("cluster"))) as cluster,
        LocalServices(redis=cluster.url) as machine,
        Site(machine, cluster) as site,
    ):
        yield site


def shard_killed(site: Site) -> Callable[[], None]:
    site.cluster.kill(0)
    return lambda: site.cluster.restart(0)


def kafka_killed(site: Site) -> Callable[[], None]:
    kafka = site.machine.kafka_node
    assert kafka is not None
    kafka.kill()

    def again() -> None:
        kafka.launch()
        kafka.wait_ready()

    return again


def frozen(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def shard_frozen(site: Site) -> Callable[[], None]:
    return frozen(site.cluster.nodes[1].pid)


def kafka_frozen(site: Site) -> Callable[[], None]:
    assert site.machine.kafka_node is not None
    return frozen(site.machine.kafka_node.pid)


def learner_frozen(site: Site) -> Callable[[], None]:
    return frozen(site.pipeline.supervisor.pid("learner"))


def learner_killed(site: Site) -> Callable[[], None]:
    os.kill(site.pipeline.supervisor.pid("learner"), signal.SIGKILL)
    return lambda: None  # its supervisor starts it again


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [shard_frozen, shard_killed, learner_frozen, learner_killed, kafka_frozen, kafka_killed],
)
def test_no_request_fails_during_faults_and_answers_report_their_age(
    site: Site, fault: Callable[[Site], Callable[[], None]]
) -> None:
    requests = site.requests
    site.expect(lambda: requests.oldest_ms < FRESH_MS, "fresh answers before anything happens")
    version, answered = requests.last["version"], requests.answered
    undo = fault(site)
    try:
        old_ms = RESTARTED_OLD_MS if fault is learner_killed else OLD_MS
        site.expect(lambda: requests.oldest_ms > old_ms, "answers that say that they get older")
    finally:
        undo()
    site.expect(
        lambda: requests.oldest_ms < FRESH_MS and requests.last["version"] > version,
        "fresh answers again, that learned more",
    )
    assert requests.answered > answered + REQUESTS_PER_S
    assert requests.failed == []
