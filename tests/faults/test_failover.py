"""A primary that dies, pauses or loses its data under load: its replica takes over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.faults.shards import cut_link, head_of, is_primary, mend_link, shard_at, wait_promoted

if TYPE_CHECKING:
    from tests.faults.pipeline import Pipeline
    from tests.valkey_cluster import ClusterNode, ValkeyCluster


def index_of(cluster: ValkeyCluster, node: ClusterNode) -> int:
    return cluster.nodes.index(node)


def test_a_replica_that_lacks_acknowledged_writes_takes_over(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> None:
    shard = shard_at(cluster, pipeline.store.node_of(0))
    buckets = pipeline.buckets_on(shard.primary.address)
    key = pipeline.store.key(buckets[0], "marks")
    pipeline.start(learners=2)
    pipeline.traffic.begin()
    pipeline.until_learned(20)
    cut_link(shard)
    try:
        pipeline.until_learned(20)  # acknowledged by the primary alone
        acknowledged = head_of(shard.primary, key)
        cluster.kill(index_of(cluster, shard.primary))
        left = head_of(shard.replica, key)
        assert int(left["version"]) < int(acknowledged["version"])
        assert sum(_marks(left)) <= sum(_marks(acknowledged)) - 20
        wait_promoted(shard.replica)
        pipeline.until_learned(20)
        again = head_of(shard.replica, key)
        assert int(again["version"]) > int(left["version"])
    finally:
        mend_link(shard.replica)
        cluster.restart(index_of(cluster, shard.primary))
    assert not is_primary(shard.primary)
    pipeline.settle()
    pipeline.verify()


def _marks(head: dict[str, str]) -> list[int]:
    return [int(mark) for name, mark in head.items() if "/" in name]
