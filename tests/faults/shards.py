"""The shards of a Valkey Cluster with replicas, seen as they are now, and how to break them."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import redis

from headrace.deploy.local.services.waiting import wait_until

if TYPE_CHECKING:
    from tests.valkey_cluster import ClusterNode, ValkeyCluster

DEADLINE_S = 90.0
"""For anything that is waited for: ten times what it takes on an idle machine."""

IGNORING_XFSZ = ("/bin/sh", "-c", 'trap "" XFSZ; exec "$@"', "sh")
"""Launches a server that a write beyond the limit on the size of a file does not end: the write
fails, as on a full disk. A process inherits which signals it ignores."""

Head = dict[str, str]
"""State of a bucket and its sources."""


class Shard(NamedTuple):
    """A primary and its replica."""

    primary: ClusterNode
    replica: ClusterNode


def shards_of(cluster: ValkeyCluster) -> list[Shard]:
    """Return all shards of a healthy cluster, in the order of their primaries' node numbers."""
    primaries = [node for node in cluster.nodes if is_primary(node)]
    followed = {
        node.call("CONFIG", "GET", "port").split()[-1]: _primary_port(node)
        for node in cluster.nodes
        if not is_primary(node)
    }
    by_port = {str(node.port): node for node in cluster.nodes}
    pairs = {primary: by_port[port] for port, primary in followed.items()}
    return [Shard(node, pairs[str(node.port)]) for node in primaries]


def shard_at(cluster: ValkeyCluster, address: str) -> Shard:
    """Return the shard whose primary has this address."""
    return next(shard for shard in shards_of(cluster) if shard.primary.address == address)


def wait_healthy(cluster: ValkeyCluster) -> None:
    """Return when three primaries serve all slots, and each has a replica in step with it."""

    def healthy() -> bool:
        try:
            roles = [is_primary(node) for node in cluster.nodes]
            linked = {
                _primary_port(node) for node in cluster.nodes if "link_status:up" in _role(node)
            }
            states = [node.call("CLUSTER", "INFO") for node in cluster.nodes]
        except (ConnectionError, TimeoutError, ValueError):
            return False
        return (
            sum(roles) == len(linked) == len(cluster.nodes) // 2
            and all("cluster_state:ok" in state for state in states)
            and all("cluster_slots_ok:16384" in state for state in states)
        )

    expect(wait_until(healthy, DEADLINE_S), "a healthy cluster")


def is_primary(node: ClusterNode) -> bool:
    return "role:master" in _role(node)


def wait_promoted(node: ClusterNode) -> None:
    """Return when this replica is a primary."""
    expect(wait_until(lambda: is_primary(node), DEADLINE_S), f"{node.address} promoted")


def cut_link(shard: Shard) -> None:
    """From now on the replica gets nothing: it is sent away, and has a wrong password.

    To stop its process would not do: what the primary sends would wait for it in the socket.
    """
    shard.replica.call("CONFIG", "SET", "primaryuser", "nobody", "primaryauth", "nonsense")
    shard.primary.call("CLIENT", "KILL", "TYPE", "replica")
    expect(
        wait_until(lambda: "link_status:down" in _role(shard.replica), DEADLINE_S),
        "the replica without its primary",
    )


def mend_link(replica: ClusterNode) -> None:
    """Take `cut_link` back."""
    replica.call("CONFIG", "SET", "primaryuser", "", "primaryauth", "")


def lose_files(node: ClusterNode) -> None:
    """Simulate a lost disk of a dead node that keeps its place in the cluster."""
    shutil.rmtree(node.directory / "appendonlydir")


def head_of(node: ClusterNode, key: bytes) -> Head:
    """Return a bucket's head as this node has it, primary or replica."""
    with redis.Redis(host="127.0.0.1", port=node.port, single_connection_client=True) as client:
        client.execute_command("READONLY")
        found: dict[bytes, bytes] = client.hgetall(key)
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()}


@contextlib.contextmanager
def standing_still(node: ClusterNode) -> Iterator[None]:
    """The process of the node neither answers nor ends."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


@contextlib.contextmanager
def full_disk(node: ClusterNode) -> Iterator[None]:
    """The files of the node cannot grow: what it writes fails, as on a disk that is full.

    A cut write may leave a hole in the append-only file, and the node would refuse the file at its
    next start. So the file is rewritten at the end, as the guide to operating says.
    """
    limits = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in (node.directory / "appendonlydir").iterdir())
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (largest + 1000, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, limits)
    # a rewrite that begins before the node has written what waits would write it twice
    expect(
        wait_until(lambda: _persistence(node, "aof_last_write_status") == "ok", DEADLINE_S),
        "a node that writes again",
    )
    node.call("BGREWRITEAOF")
    going_on = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")
    expect(
        wait_until(lambda: all(_persistence(node, each) == "0" for each in going_on), DEADLINE_S),
        "a rewritten append-only file",
    )


def _persistence(node: ClusterNode, name: str) -> str:
    lines = node.call("INFO", "persistence").splitlines()
    return next(line.partition(":")[2] for line in lines if line.startswith(f"{name}:"))


def used_memory(node: ClusterNode) -> int:
    lines = node.call("INFO", "memory").splitlines()
    return next(int(line.split(":")[1]) for line in lines if line.startswith("used_memory:"))


def expect(held: bool, what: str) -> None:
    assert held, f"expected {what} within {DEADLINE_S:g} s"


def _role(node: ClusterNode) -> str:
    return node.call("INFO", "replication")


def _primary_port(node: ClusterNode) -> str:
    return next(
        (line.split(":")[1] for line in _role(node).splitlines() if "master_port" in line), ""
    )
