"""A shard whose disks are gone: primary and replica come back with their place and without data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pserver.errors import MissingBucket
from tests.faults.shards import lose_files, shard_at

if TYPE_CHECKING:
    from tests.faults.pipeline import Pipeline
    from tests.valkey_cluster import ValkeyCluster


def test_an_empty_shard_stops_learners_until_kafka_refills_the_restored_buckets(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> None:
    shape_key = f"{{{pipeline.spec.name}}}:shape".encode()
    shard = shard_at(cluster, pipeline.store.nodes.name_of(shape_key))
    lost = pipeline.buckets_on(shard.primary.address)
    assert 0 < len(lost) < pipeline.shape.buckets
    pipeline.start(learners=2)
    pipeline.traffic.begin()
    pipeline.until_learned(20)

    for node in (shard.replica, shard.primary):
        cluster.kill(cluster.nodes.index(node))
        lose_files(node)
    cluster.restart(*(cluster.nodes.index(node) for node in (shard.primary, shard.replica)))

    for name, error in pipeline.until_all_stopped().items():
        assert isinstance(error, MissingBucket), name
        assert "`headrace pserver restore`" in str(error), name

    # what the command does where there is no snapshot
    pipeline.store.begin(pipeline.shape)
    assert pipeline.store.missing() == lost
    for bucket in lost:
        pipeline.store.load(bucket, 0, {}, [])
    pipeline.store.finish()

    pipeline.start(learners=2)
    pipeline.settle()
    pipeline.verify()
