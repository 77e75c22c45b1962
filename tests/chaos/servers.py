"""Three brokers of Kafka and a Valkey Cluster of 3+3, which headrace reaches over links.

Nothing here needs root. Heaps and backlogs are small, so that nine servers fit beside headrace on a
small machine. `KafkaCluster` and `ValkeyCluster` start the servers; this file adds the links: each
server has a second port that it advertises to clients, and a link from there to its own.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.deploy.local.services.kafka import HOST, KafkaNodeSettings
from headrace.deploy.local.services.kafka_jars import kafka_jars
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.server_process import ServerProcess
from tests.chaos.links import Links
from tests.faults.kafka_cluster import KafkaCluster, KafkaClusterNode
from tests.faults.shards import IGNORING_XFSZ, wait_healthy
from tests.valkey_cluster import FAILING_OVER, ClusterSettings, ValkeyCluster

PRIMARIES = 3
HEAP_MB = 256
BROKER_MB = 2.0 * HEAP_MB
"""A broker's heap, and as much for its code, buffers and threads."""
_BACKLOG_MB = 16
"""It is allocated whole once a replica connects, and fills during the first minutes of a run."""


@dataclass(frozen=True)
class LinkedValkeySettings(ClusterSettings):
    """Settings of a node that tells clients the port of its link."""

    client_port: int = 0

    def as_arguments(self) -> list[str]:
        """Return the settings as arguments of valkey-server."""
        return [*super().as_arguments(), "--cluster-announce-client-port", str(self.client_port)]


class Servers:
    """The servers of a run. `kafka` and `redis` are the addresses for headrace."""

    def __init__(self, directory: Path, jars: Path | None) -> None:
        self.brokers = KafkaCluster(
            directory, kafka_jars(jars), KafkaNodeSettings(heap_mb=HEAP_MB), remove=directory
        )
        self.valkey = ValkeyCluster(
            directory, PRIMARIES, FAILING_OVER, replicas_each=1, remove=directory
        )
        ports = [node.port for node in self.brokers.nodes.values()]
        self.links = Links([*ports, *(node.port for node in self.valkey.nodes)])
        for broker in self.brokers.nodes.values():
            broker.further_properties = _two_listeners(broker, self.links.ports[broker.port])
        for node in self.valkey.nodes:
            node.launcher = IGNORING_XFSZ
            node.settings = LinkedValkeySettings(
                **asdict(FAILING_OVER)
                | {"repl_backlog_mb": _BACKLOG_MB, "client_port": self.links.ports[node.port]}
            )

    @property
    def kafka(self) -> str:
        """Kafka bootstrap servers, over the links."""
        ports = (self.links.ports[node.port] for node in self.brokers.nodes.values())
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def redis(self) -> str:
        """URL of the Valkey Cluster, over the links."""
        ports = (self.links.ports[node.port] for node in self.valkey.nodes)
        return f"redis+cluster://{','.join(f'{HOST}:{port}' for port in ports)}"

    def start(self) -> None:
        """Start all servers, and return when they serve."""
        self.valkey.launch()
        self.brokers.launch()
        self.valkey.wait_ready()
        self.brokers.wait_ready()

    def wait_whole(self) -> None:
        """Return when every replica of both clusters is in step."""
        wait_healthy(self.valkey)
        self.brokers.wait_in_sync()

    def pids(self) -> dict[str, int]:
        """Return the process of every server that runs now."""
        named: dict[str, ServerProcess] = {
            f"broker-{n}": node for n, node in self.brokers.nodes.items()
        }
        named |= {f"valkey-{n}": node for n, node in enumerate(self.valkey.nodes)}
        return {name: node.pid for name, node in named.items() if node.alive}

    def stop(self) -> None:
        """Stop all servers."""
        self.valkey.ask_to_stop()
        self.brokers.stop()
        self.valkey.stop()
        self.links.close()


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Servers]:
    """Run the servers, with their data in `directory`."""
    jars = os.environ.get("HEADRACE_KAFKA_JARS")
    servers = Servers(directory, Path(jars) if jars else None)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


def _two_listeners(node: KafkaClusterNode, client_port: int) -> dict[str, object]:
    inside = f"INTERNAL://{HOST}:{free_port()}"
    controller = f"CONTROLLER://{HOST}:{node.controller_port}"
    return {
        "listeners": f"PLAINTEXT://{node.address},{inside},{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{client_port},{inside}",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "INTERNAL", "CONTROLLER")
        ),
    }
