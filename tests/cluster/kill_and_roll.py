"""Plays what happens to a release on a real node while events flow, and counts at the end.

install       `helm install --wait`, then `curl`: the time until the first prediction
kill          a joiner and a learner, with the shortest grace period: SIGTERM, and two seconds
roll          `helm upgrade --wait` to another version of the chart and of the image: every pod
drain         the budget protects the last learner of two; then the node is used again
servers       of three brokers, the coordinator of the joiners' group is killed and started again; a
              primary is killed, and its replica takes over
count         every impression once in the rows of each field, every click once
uninstall     `helm uninstall` leaves no object, once the pods have drained
"""

import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from headrace.deploy.local.drain import Drain
from headrace.deploy.local.services.kafka import KafkaNodeSettings
from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.models.shipped import path_of
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import joiner_group
from headrace.learner.spec.model_spec import load_spec
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from tests.chaos.accounting import Counted, differences
from tests.chaos.counting import count
from tests.chaos.trail import follow
from tests.cluster.control_plane import ControlPlane, Refused
from tests.cluster.node import BRIDGE_ADDRESS, NAME
from tests.cluster.release import Release, chart_of_version
from tests.cluster.site_traffic import MODEL, SiteTraffic
from tests.faults.kafka_cluster import BROKERS, KafkaCluster
from tests.faults.shards import shards_of, wait_healthy, wait_promoted
from tests.running_server import jars, running_server
from tests.valkey_cluster import FAILING_OVER, ValkeyCluster

IMAGE, TAG, NEXT_TAG = "localhost/headrace", "plain", "next"
EVENTS_S = 200.0
"""Impressions per second."""
_MORE = 2000
"""Impressions after a step, before the next one begins."""
_EVICTION_S = 20
_HEAP_MB = 256
_WAIT_S = 300.0


class Played(NamedTuple):
    """The figures and counts of one run."""

    first_prediction_s: float
    """From the start of `helm install` to the end of `curl`, on a cluster with Kafka and Valkey."""
    notes: str
    """What `helm install` printed."""
    steps: list[tuple[str, float]]
    """Each step, with the seconds until every pod was ready."""
    refused_eviction: str
    """Why the second of two learners was not evicted."""
    questions: int
    repeated: int
    """Questions and batches of events that were sent again."""
    longest_question_s: float
    """Until a question was answered, with all attempts."""
    counted: Counted
    violations: list[str]
    left: list[str]
    """Objects of the release after `helm uninstall`."""


def play(
    control_plane: ControlPlane, helm: Path, directory: Path, tell: Callable[[str], None]
) -> Played:
    """Play everything on a control plane whose node has the image under both tags."""
    brokers = KafkaNodeSettings(host=BRIDGE_ADDRESS, heap_mb=_HEAP_MB)
    kafka = KafkaCluster(directory, jars(), brokers)
    settings = replace(FAILING_OVER, host=BRIDGE_ADDRESS)
    valkey = ValkeyCluster(directory / "valkey", 3, settings, replicas_each=1)
    with ExitStack() as stack:
        tell("starting three brokers of Kafka and a Valkey Cluster on the bridge")
        stack.enter_context(running_server(kafka))
        stack.enter_context(running_server(valkey))
        release = Release(control_plane, helm, directory)
        return _Play(release, directory, tell, kafka, valkey).play()


class _Play:
    """One run, with its release, its servers and its traffic."""

    def __init__(
        self,
        release: Release,
        directory: Path,
        tell: Callable[[str], None],
        kafka: KafkaCluster,
        valkey: ValkeyCluster,
    ) -> None:
        self._tell, self._kafka, self._valkey = tell, kafka, valkey
        self._next_chart = chart_of_version("0.2.0", directory)
        self._spec = load_spec(path_of(MODEL))
        self._release = release
        self._traffic = SiteTraffic(self._release, EVENTS_S, seed=1)
        self._steps: list[tuple[str, float]] = []
        self._refused = ""

    def play(self) -> Played:
        first_s, notes = self._install()
        try:
            self._traffic.start()
            self._step("kill a joiner", lambda: self._release.kill("joiner"))
            self._step("kill a learner", lambda: self._release.kill("learner"))
            self._step("helm upgrade", self._roll)
            self._step("drain and uncordon the node", self._drain)
            self._step("kill a broker", self._kill_broker)
            self._step("kill a primary", self._kill_primary)
            self._tell("the traffic ends; waiting until every event is learned")
            self._traffic.finish()
        finally:
            self._traffic.close()
        counted, violations = self._count()
        self._tell("helm uninstall")
        began_s = time.monotonic()
        self._release.uninstall()
        wait_until(lambda: not self._release.left(), _WAIT_S)  # Helm does not wait for pods
        self._steps.append(("helm uninstall", time.monotonic() - began_s))
        asked, sent = self._traffic.server, self._traffic.collector
        return Played(
            first_s,
            notes,
            self._steps,
            self._refused,
            self._traffic.questions,
            asked.repeated + sent.repeated,
            asked.longest_s,
            counted,
            violations,
            self._release.left(),
        )

    def _install(self) -> tuple[float, str]:
        """Return the seconds to the first prediction, and what `helm install` printed."""
        self._tell("helm install")
        began_s = time.monotonic()
        notes = self._release.install(_values(self._kafka, self._valkey, TAG))
        self._steps.append(("helm install", time.monotonic() - began_s))
        url = f"http://{self._release.ready_addresses('server')[0]}/v1/models/{MODEL}:predict"
        curl = ("curl", "--silent", "--show-error", "--fail", "--json", _QUESTION, url)
        done = subprocess.run(curl, check=False, capture_output=True, text=True)
        first_s = time.monotonic() - began_s
        assert '"predictions"' in done.stdout, done.stdout + done.stderr
        self._tell(f"  {done.stdout}")
        return first_s, notes

    def _step(self, name: str, act: Callable[[], None]) -> None:
        """Act, wait until every pod is ready, and let more events flow."""
        self._tell(name)
        began_s = time.monotonic()
        act()
        self._release.wait_rolled_out()
        self._steps.append((name, time.monotonic() - began_s))
        stream = self._traffic.stream
        enough = stream.impressions + _MORE
        flowing = wait_until(lambda: stream.impressions >= enough, _WAIT_S, stream.is_alive)
        self._tell(f"  {time.monotonic() - began_s:.0f} s, {stream.impressions:,} impressions")
        assert flowing, (
            f"expected {_MORE:,} more impressions within {_WAIT_S:g} s of {name}, got "
            f"{stream.impressions - enough + _MORE:,}: {stream.failure}; the last attempt failed "
            f"with {self._traffic.collector.last_failure}; pods:\n{self._release.states()}"
        )

    def _roll(self) -> None:
        values = _values(self._kafka, self._valkey, NEXT_TAG)
        self._release.upgrade(values, self._next_chart)

    def _drain(self) -> None:
        try:
            self._release.drain(NAME, "learner", _EVICTION_S)
        except Refused as refused:
            self._refused = str(refused)
        self._release.uncordon(NAME)

    def _kill_broker(self) -> None:
        victim = self._kafka.group_coordinator(joiner_group(self._spec.name))
        self._kafka.kill(victim)
        self._kafka.wait_moved(victim)
        self._kafka.restart(victim)

    def _kill_primary(self) -> None:
        shard = shards_of(self._valkey)[0]
        shard.primary.kill()
        wait_promoted(shard.replica)
        shard.primary.launch()
        shard.primary.wait_ready()
        wait_healthy(self._valkey)

    def _count(self) -> tuple[Counted, list[str]]:
        kafka, spec, stream = KafkaSettings(self._kafka.bootstrap), self._spec, self._traffic.stream
        with closing(
            open_store(self._valkey.url, spec.name, StoreSettings(read_only=True))
        ) as store:
            with closing(Drain(kafka, spec, store)) as drain:
                drain.wait(threading.Event(), lambda _: None, _WAIT_S)
            counted = count(kafka, spec, store, stream.impressions, stream.clicks)
        trail = follow(kafka, spec)
        return counted, [*differences(counted), *trail.lost, *trail.unscored]


_QUESTION = """\
{"context": {"user_id": "u1", "device": "phone"},
 "candidates": [{"item_id": "i1", "category": "sport", "position": 1}]}"""


def _values(kafka: KafkaCluster, valkey: ValkeyCluster, tag: str) -> dict[str, Any]:
    """Return the values of the release, with requests that fit a machine of two cores."""
    little = {"resources": {"requests": {"cpu": "50m"}}}
    model = {
        "spec": path_of(MODEL).read_text(),
        "partitions": 4,
        "buckets": 8,
        "rows": 100_000,
        "joiners": {"replicas": 1, **little},
        "learners": {"replicas": 2, **little},
        "keepers": {"replicas": 1, **little},
        "evaluation": {"replicas": 1, **little},
    }
    return {
        "image": {"repository": IMAGE, "tag": tag, "pullPolicy": "Never"},
        "kafka": {"bootstrap": kafka.bootstrap, "replicas": BROKERS},
        "redis": {"url": valkey.url},
        "models": {MODEL: model},
        "server": {"anyone": True, "replicas": 1, **little},
        "collector": {"anyone": True, "replicas": 1, **little},
    }


def as_table(played: Played) -> Table:
    """Return the figures as a table."""
    table = Table("on one real node", "", show_lines=False)
    counted = played.counted
    table.add_row("helm install and curl", f"{played.first_prediction_s:.1f} s")
    for name, seconds in played.steps:
        table.add_row(f"{name}, until every pod is ready", f"{seconds:.1f} s")
    table.add_row("eviction of the second learner", played.refused_eviction.splitlines()[-1][:90])
    table.add_row("questions, all answered", f"{played.questions:,}")
    table.add_row("sent again", f"{played.repeated:,}")
    table.add_row("longest wait for an answer", f"{played.longest_question_s:.1f} s")
    table.add_row("impressions, each once in every field", f"{counted.impressions:,}")
    table.add_row("clicks, each once", f"{counted.clicks:,}")
    table.add_row("late clicks", f"{counted.late_clicks:,}")
    table.add_row("violations", "\n".join(played.violations) or "none")
    table.add_row("objects after helm uninstall", "\n".join(played.left) or "none")
    return table
