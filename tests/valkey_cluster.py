"""Runs a Valkey Cluster on this machine, with or without replicas.

A cluster is created as an operator would do it. Every primary gets its range of the 16384 slots
(CLUSTER ADDSLOTSRANGE), the first node meets the others (CLUSTER MEET), and the cluster is ready
when every node reports `cluster_state:ok`. Replicas join in the same way and then follow a primary
(CLUSTER REPLICATE).

Two settings keep the other nodes working while a killed one is down. `cluster-require-full-coverage
no` lets the served slots work while others are not served. A node timeout of one hour keeps a node
from seeing its peers as failed: a node that counts a majority of the primaries as failed stops
answering, and one of two is enough for that. Nothing is lost, because failure detection only
promotes replicas. For a cluster with replicas see FAILING_OVER.
"""

from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.valkey import ValkeyNode, ValkeySettings

SLOTS = 16384
NODES_FILE = "nodes.conf"  # a node keeps its identity, its slots and its peers in it


@dataclass(frozen=True)
class ClusterSettings(ValkeySettings):
    """Settings of a node of a cluster."""

    node_timeout_ms: int = 3_600_000
    """Without replicas, failure detection only does harm: see the module docstring."""

    replica_validity_factor: int = 10
    """A replica without contact for this many node timeouts is not promoted. Valkey's default."""

    def as_arguments(self) -> list[str]:
        """Return the settings as arguments of valkey-server."""
        return [
            *super().as_arguments(),
            *("--cluster-enabled", "yes", "--cluster-config-file", NODES_FILE),
            *("--cluster-node-timeout", str(self.node_timeout_ms)),
            *("--cluster-require-full-coverage", "no"),
            *("--cluster-replica-validity-factor", str(self.replica_validity_factor)),
            *("--cluster-allow-replica-migration", "no"),  # a replica keeps its primary
        ]


FAILING_OVER = ClusterSettings(node_timeout_ms=2_000, replica_validity_factor=0)
"""For a cluster with replicas. A dead primary is replaced in about 3 s; with a much shorter timeout
a busy machine looks dead. Any replica may be promoted, even one that lags: Kafka still has the lost
updates, whereas an unserved shard waits for an operator."""


class ClusterNode(ValkeyNode):
    """One node of a cluster."""

    def __init__(self, directory: Path, settings: ClusterSettings, remove: Path | None) -> None:
        super().__init__(directory, settings, remove=remove)
        self.bus_port = free_port()

    def arguments(self) -> list[str]:
        """Return the arguments of valkey-server."""
        return [*super().arguments(), "--cluster-port", str(self.bus_port)]


class ValkeyCluster:
    """A Valkey Cluster. Each node has its own directory in `directory`.

    `nodes` has the primaries, then `replicas_each` replicas of each primary in order. A failover
    changes the roles. `settings` default to FAILING_OVER if there are replicas.
    """

    def __init__(
        self,
        directory: Path,
        primaries: int = 2,
        settings: ClusterSettings | None = None,
        *,
        replicas_each: int = 0,
        remove: Path | None = None,
    ) -> None:
        if settings is None and replicas_each:
            settings = FAILING_OVER
        self.nodes = [
            ClusterNode(directory / f"valkey-{index}", settings or ClusterSettings(), remove=remove)
            for index in range(primaries * (1 + replicas_each))
        ]
        self._primaries, self._replicas_each = primaries, replicas_each

    @property
    def url(self) -> str:
        """URL with every node, so that a client finds the cluster while one is down."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def launch(self) -> None:
        """Start every node without waiting for it."""
        for node in self.nodes:
            node.launch()

    def wait_ready(self) -> None:
        """Return when the cluster serves every slot and the replicas are in sync.

        Raises DeployError.
        """
        for node in self.nodes:
            node.wait_ready()
        if all(_cluster_info(node)["cluster_slots_assigned"] == "0" for node in self.nodes):
            self._join()
        for node in self.nodes:
            self._wait_joined(node)

    def _join(self) -> None:
        for index, node in enumerate(self.nodes[: self._primaries]):
            first, past_last = _slot_range(index, self._primaries)
            node.call("CLUSTER", "ADDSLOTSRANGE", first, past_last - 1)
            # two nodes of one epoch would take seconds to resolve the conflict
            node.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        first_node, *others = self.nodes
        for other in others:  # from one node: handshakes in both directions can undo each other
            host = other.settings.host
            first_node.call("CLUSTER", "MEET", host, other.port, other.bus_port)
        for index, replica in enumerate(self.nodes[self._primaries :]):
            self._attach(replica, self.nodes[index // self._replicas_each])

    def _attach(self, replica: ClusterNode, primary: ClusterNode) -> None:
        identity = primary.call("CLUSTER", "MYID")

        def attached() -> bool:
            try:
                return replica.call("CLUSTER", "REPLICATE", identity) == "OK"
            except ValueError:  # the nodes have not met yet
                return False

        replica.wait_for(attached, f"a replica of {primary.address}")

    def kill(self, index: int) -> None:
        """Send SIGKILL to one node."""
        self.nodes[index].kill()

    def restart(self, *indices: int) -> None:
        """Restart killed nodes on their ports with their data, and wait for them.

        Restart together all that are down: a node has joined once it has links to all others.
        """
        nodes = [self.nodes[index] for index in indices]
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait_ready()
        for node in nodes:
            self._wait_joined(node)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to every node and return at once."""
        for node in self.nodes:
            node.ask_to_stop()

    def stop(self) -> None:
        """Stop all nodes at the same time."""
        self.ask_to_stop()
        for node in self.nodes:
            node.stop()

    def _wait_joined(self, node: ClusterNode) -> None:
        def joined() -> bool:
            info = _cluster_info(node)
            return (
                info["cluster_state"] == "ok"
                and info["cluster_slots_ok"] == str(SLOTS)
                and _linked_nodes(node) == len(self.nodes) - 1
                and "master_link_status:down" not in node.call("INFO", "replication")
            )

        node.wait_for(joined, "cluster_state:ok (and master_link_status:up of a replica)")


def _slot_range(index: int, primaries: int) -> tuple[int, int]:
    return index * SLOTS // primaries, (index + 1) * SLOTS // primaries


def _cluster_info(node: ClusterNode) -> dict[str, str]:
    lines = node.call("CLUSTER", "INFO").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _linked_nodes(node: ClusterNode) -> int:
    """Return the number of other nodes to which this node has a link."""
    lines = node.call("CLUSTER", "NODES").splitlines()
    return sum("myself" not in line and line.split()[7] == "connected" for line in lines)
