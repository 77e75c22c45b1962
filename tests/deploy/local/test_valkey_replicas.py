"""A cluster with replicas: it comes up, a replica takes over, and all of it outlives a restart."""

from pathlib import Path

import pytest

from headrace.deploy.local.services.valkey import ValkeyNode
from headrace.deploy.local.services.waiting import wait_until
from tests.valkey_cluster import ValkeyCluster

DEADLINE_S = 90.0


def role_of(node: ValkeyNode) -> str:
    return node.call("ROLE").split()[0]


@pytest.mark.long
def test_a_replica_takes_over_and_the_dead_primary_comes_back_as_its_replica(
    tmp_path: Path,
) -> None:
    """Three, since a majority of the primaries has to agree that one is dead."""
    cluster = ValkeyCluster(tmp_path / "data", primaries=3, replicas_each=1)
    try:
        cluster.launch()
        cluster.wait_ready()
        assert [role_of(node) for node in cluster.nodes] == ["master"] * 3 + ["slave"] * 3
        primary, replica = cluster.nodes[1], cluster.nodes[4]
        key = next(
            key
            for key in (f"key-{number}" for number in range(1000))
            if 5461 <= int(primary.call("CLUSTER", "KEYSLOT", key)) < 10922
        )
        assert primary.call("SET", key, "kept") == "OK"
        assert primary.call("WAIT", 1, 10_000) == "1"

        cluster.kill(1)
        assert wait_until(lambda: role_of(replica) == "master", DEADLINE_S)
        assert wait_until(lambda: _has(replica, key, "kept"), DEADLINE_S)
        cluster.restart(1)
        assert role_of(primary) == "slave"
    finally:
        cluster.stop()

    again = ValkeyCluster(tmp_path / "data", primaries=3, replicas_each=1)
    try:
        again.launch()
        again.wait_ready()
        assert [role_of(node) for node in again.nodes] == [
            *("master", "slave", "master"),
            *("slave", "master", "slave"),
        ]
        assert again.nodes[4].call("GET", key) == "kept"
        assert f"master_port:{again.nodes[4].port}" in again.nodes[1].call("INFO", "replication")
    finally:
        again.stop()


def _has(node: ValkeyNode, key: str, value: str) -> bool:
    try:
        return node.call("GET", key) == value
    except ValueError:  # CLUSTERDOWN, until the others agree that it is the primary
        return False
