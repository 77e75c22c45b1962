"""Starts a Kafka cluster of several brokers that a test kills and restarts.

Each broker is also a controller of the KRaft quorum, and every partition has a replica on each of
three brokers. With one broker of three dead, the others keep a majority of the quorum and enough
in-sync replicas, so that all work goes on once leaders and coordinators have moved. Timeouts of
that failover are Kafka's defaults, so the time it takes is that of a real cluster.

    cluster = KafkaCluster(directory, jars)
    cluster.launch()
    cluster.wait_ready()
    victim = cluster.group_coordinator("a-group")
    cluster.kill(victim)
    cluster.restart(victim)  # returns when it is in sync again
"""

from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
)

from headrace.deploy.local.services.kafka import HOST, KafkaNode, KafkaNodeSettings, new_cluster_id
from headrace.deploy.local.services.waiting import wait_until

BROKERS = 3
IN_SYNC_S = 120.0
"""For a restarted broker to be in sync: some 10 s on an idle machine."""
_ANSWER_S = 5.0
_OFFSETS = "__consumer_offsets"


class KafkaClusterNode(KafkaNode):
    """One broker and controller of a cluster."""

    def __init__(
        self,
        directory: Path,
        jars: Sequence[Path],
        number: int,
        cluster_id: str,
        settings: KafkaNodeSettings | None = None,
        *,
        remove: Path | None = None,
    ) -> None:
        """`number`: the id of the broker, from 1."""
        super().__init__(directory, jars, settings, remove=remove)
        self.number = number
        self.voters = ""
        """The controllers of the whole cluster, as `id@host:port`."""
        self.further_properties: dict[str, object] = {}
        """Settings of this broker that replace its others."""
        self._cluster_id = cluster_id

    def _properties(self) -> dict[str, object]:
        return {
            **super()._properties(),
            "node.id": self.number,
            "controller.quorum.voters": self.voters,
            "default.replication.factor": BROKERS,
            "min.insync.replicas": BROKERS - 1,
            "offsets.topic.replication.factor": BROKERS,
            "transaction.state.log.replication.factor": BROKERS,
            "transaction.state.log.min.isr": BROKERS - 1,
            "share.coordinator.state.topic.replication.factor": BROKERS,
            "share.coordinator.state.topic.min.isr": BROKERS - 1,
            **self.further_properties,
        }


class KafkaCluster:
    """Brokers with the numbers 1, 2 and 3. Clients connect to `bootstrap`."""

    def __init__(
        self,
        directory: Path,
        jars: Sequence[Path],
        settings: KafkaNodeSettings | None = None,
        *,
        remove: Path | None = None,
    ) -> None:
        cluster_id = new_cluster_id()
        self.nodes = {
            number: KafkaClusterNode(
                directory / f"kafka-{number}", jars, number, cluster_id, settings, remove=remove
            )
            for number in range(1, BROKERS + 1)
        }
        voters = [f"{n}@{HOST}:{node.controller_port}" for n, node in self.nodes.items()]
        for node in self.nodes.values():
            node.voters = ",".join(voters)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, so that a client finds the cluster while one is dead."""
        return ",".join(node.address for node in self.nodes.values())

    def launch(self) -> None:
        """Start every broker without waiting for it."""
        for node in self.nodes.values():
            node.launch()

    def wait_ready(self) -> None:
        """Return when every broker serves clients. Raises DeployError."""
        for node in self.nodes.values():
            node.wait_ready()
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Return when all brokers are alive and every partition has all its replicas in sync."""

        def in_sync() -> bool:
            try:
                found = self._metadata()
            except KafkaException:
                return False
            partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
            return len(found.brokers) == len(self.nodes) and all(
                p.leader > 0 and set(p.isrs) == set(p.replicas) for p in partitions
            )

        assert wait_until(in_sync, IN_SYNC_S), "expected every replica in sync"

    def wait_moved(self, dead: int) -> None:
        """Return when the living brokers lead every partition that a dead one led."""

        def moved() -> bool:
            try:
                found = self._metadata()
            except KafkaException:
                return False
            partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
            return all(p.leader > 0 and p.leader != dead for p in partitions)

        assert wait_until(moved, IN_SYNC_S), "expected leaders among the living brokers"

    def kill(self, number: int) -> None:
        """Send SIGKILL to one broker."""
        self.nodes[number].kill()

    def restart(self, number: int) -> None:
        """Start a killed broker again with its data, and wait until it is in sync."""
        self.nodes[number].launch()
        self.nodes[number].wait_ready()
        self.wait_in_sync()

    def stop(self) -> None:
        """Stop all brokers at the same time."""
        for node in self.nodes.values():
            node.ask_to_stop()
        for node in self.nodes.values():
            node.stop()

    # ---------------------------------------------------------------- who leads what

    def group_coordinator(self, group: str) -> int:
        """Return the broker that coordinates a consumer group."""
        return self._coordinator(_OFFSETS, group)

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition."""
        return self._metadata().topics[topic].partitions[partition].leader

    def _coordinator(self, topic: str, key: str) -> int:
        count = len(self._metadata().topics[topic].partitions)
        return self.leader(topic, (_java_hash(key) & 0x7FFFFFFF) % count)

    def _metadata(self) -> ClusterMetadata:
        return AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=_ANSWER_S)


def _java_hash(text: str) -> int:
    """Return `hashCode` of a string in Java, by which Kafka places a coordinator."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value
