"""Brokers of a cluster of three are killed while a joiner's transaction is open.

The joiner is the command under headrace's own supervisor, so a joiner that ends itself with status
75 is started again. "Fresh" means that every partition has committed examples of events newer than
the kill.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.deploy.local.services.waiting import wait_until
from headrace.deploy.local.supervisor import Restart, SupervisedPart, Supervisor
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, examples_topic, topics_for
from headrace.learner.spec.model_spec import parse_spec
from headrace.runtime.termination import UNREACHABLE
from tests.faults.event_stream import EventStream, JoinedExamples
from tests.faults.kafka_cluster import BROKERS, KafkaCluster
from tests.running_server import jars, running_server

PARTITIONS = 6
FRESH_AGAIN_S = 30.0
"""From the moment when Kafka has moved leaders and coordinators: some 10 s after the kill."""
START_S = 90.0
STOPPED_S = 30.0
"""From SIGTERM to SIGKILL in Kubernetes."""
_SEARCH_S = 240.0
"""For a moment at which a transaction is open. On a busy machine an attempt takes ten seconds."""
_HELD_S = 3.0
"""Less than the 9 s after which Kafka takes a silent broker for dead."""
MODEL = "failover"
INSTANCE = "a"
GROUP, TRANSACTIONS = f"headrace.{MODEL}.joiner", f"headrace.{MODEL}.joiner.{INSTANCE}"

SPEC = f"""
[model]
name = "{MODEL}"
[label]
policy = "immediate"
window_s = 60
[fields.user]
number = 1
transform = "id"
[fields.item]
number = 2
transform = "id"
"""


@pytest.fixture(scope="module")
def kafka_cluster(stack_directory: Path) -> Iterator[KafkaCluster]:
    """Three brokers."""
    cluster = KafkaCluster(stack_directory / "brokers", jars(), remove=stack_directory)
    with running_server(cluster):
        yield cluster


class JoinerScene:
    """A model on the cluster, its traffic, and a joiner under a supervisor."""

    def __init__(self, cluster: KafkaCluster, supervisor: Supervisor, examples: JoinedExamples):
        self.cluster, self.supervisor, self.examples = cluster, supervisor, examples
        self.statuses: list[int] = []

    def fresh_again_s(self, timeout_s: float, dead: int | None = None) -> float:
        """Wait until all partitions are fresh; return how long that took."""
        began_s = time.time()
        if dead is not None:
            self.cluster.wait_moved(dead)
            print(f"leaders moved after {time.time() - began_s:.1f} s")
        self.wait_fresh(timeout_s)
        return time.time() - began_s

    def wait_fresh(self, timeout_s: float) -> None:
        began_ms = int(time.time() * 1000)

        def fresh() -> bool:
            self.supervisor.check()
            return self.examples.all_newer_than(began_ms)

        assert wait_until(fresh, timeout_s), f"expected fresh examples within {timeout_s} s"

    def stop_in_transaction(self, coordinator: int) -> None:
        """Stop a broker with SIGSTOP while a transaction of the joiner is open.

        Such a transaction leaves records uncommitted. Without uncommitted records the broker
        continues, and the next attempt may find some.
        """
        node = self.cluster.nodes[coordinator]
        deadline_s = time.monotonic() + _SEARCH_S
        while time.monotonic() < deadline_s:
            os.kill(node.pid, signal.SIGSTOP)
            if wait_until(lambda: self._open_at_others(coordinator), _HELD_S):
                return
            os.kill(node.pid, signal.SIGCONT)
            self.wait_fresh(START_S)
        raise AssertionError("expected an open transaction")

    def kill_in_transaction(self, coordinator: int) -> None:
        """Kill a broker while a transaction of the joiner is open."""
        self.stop_in_transaction(coordinator)
        self.cluster.kill(coordinator)

    def _open_at_others(self, coordinator: int) -> bool:
        """Whether the live brokers have the same uncommitted records for half a second."""
        before = self._uncommitted(coordinator)
        return bool(before) and not wait_until(
            lambda: self._uncommitted(coordinator) != before, 0.5
        )

    def _uncommitted(self, without: int) -> dict[int, tuple[int, int]]:
        admin = AdminClient({"bootstrap.servers": self.live_bootstrap(without)})
        topic = examples_topic(MODEL)
        leaders = admin.list_topics(timeout=5).topics[topic].partitions
        asked = [TopicPartition(topic, n) for n, p in leaders.items() if p.leader != without]
        ends = []
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            answers = admin.list_offsets(
                dict.fromkeys(asked, latest), isolation_level=isolation, request_timeout=5
            )
            ends.append({tp.partition: answer.result().offset for tp, answer in answers.items()})
        stable, high = ends
        return {n: (stable[n], high[n]) for n in stable if stable[n] < high[n]}

    def live_bootstrap(self, without: int) -> str:
        nodes = self.cluster.nodes.items()
        return ",".join(node.address for number, node in nodes if number != without)


@contextmanager
def joining(cluster: KafkaCluster, directory: Path) -> Iterator[tuple[JoinerScene, EventStream]]:
    kafka, topics = KafkaSettings(cluster.bootstrap), EventTopics()
    spec = parse_spec(SPEC, f"{MODEL}.toml")
    ensure_topics(kafka, topics_for(MODEL, PARTITIONS, topics, BROKERS))
    file = directory / f"{MODEL}.toml"
    file.write_text(SPEC)
    statuses: list[int] = []

    def note(restart: Restart) -> None:
        statuses.append(restart.status)

    words = ["ingest", "join", "--model", str(file), "--kafka", cluster.bootstrap]
    words += ["--instance", INSTANCE]
    joiner = SupervisedPart("joiner", tuple(words), grace_s=STOPPED_S)
    with (
        JoinedExamples(kafka, examples_topic(MODEL), spec.fields, PARTITIONS) as examples,
        Supervisor(directory, on_restart=note) as supervisor,
        EventStream(kafka, topics, PARTITIONS) as stream,
    ):
        supervisor.start(joiner)
        scene = JoinerScene(cluster, supervisor, examples)
        scene.statuses = statuses
        scene.wait_fresh(START_S)
        yield scene, stream


@pytest.mark.long
@pytest.mark.timeout(900)
def test_examples_are_fresh_again_after_each_of_three_coordinators_was_killed_in_a_transaction(
    kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    took_s = []
    with joining(kafka_cluster, tmp_path) as (scene, stream):
        for _ in range(3):
            victim = kafka_cluster.group_coordinator(GROUP)
            scene.kill_in_transaction(victim)
            took_s.append(scene.fresh_again_s(FRESH_AGAIN_S, victim))
            print(f"fresh again after {took_s[-1]:.1f} s, restarts {scene.statuses}")
            kafka_cluster.restart(victim)
            scene.wait_fresh(START_S)
        scene.kill_in_transaction(kafka_cluster.transaction_coordinator(TRANSACTIONS))
        # deaf if it hangs in a call of the client; the supervisor starts the next one
        pid = scene.supervisor.pid("joiner")
        os.kill(pid, signal.SIGTERM)
        stopped = wait_until(lambda: scene.supervisor.pid("joiner") != pid, STOPPED_S)
        assert stopped, f"expected the end of the joiner within {STOPPED_S} s of SIGTERM"
        scene.wait_fresh(START_S)
        stream.finish()
        expected = stream.expected
        wait_until(lambda: scene.examples.found.total() >= expected.total(), START_S)
        assert scene.examples.found == expected
    assert set(scene.statuses) <= {0, UNREACHABLE}
