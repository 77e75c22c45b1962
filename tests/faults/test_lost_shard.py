"""A shard whose disks are gone: primary and replica come back with their place and without data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pserver.errors import MissingBucket
from tests.faults.shards import lose_files, shard_at

if TYPE_CHECKING:
    from headrace.deploy.local.services.valkey import ValkeyCluster
    from tests.faults.scene import Scene


def test_an_empty_shard_stops_learners_until_kafka_refills_the_restored_buckets(
    cluster: ValkeyCluster, scene: Scene
) -> None:
    shape_key = f"{{{scene.spec.name}}}:shape".encode()
    shard = shard_at(cluster, scene.store.nodes.name_of(shape_key))
    lost = scene.buckets_on(shard.primary.address)
    assert 0 < len(lost) < scene.shape.buckets
    scene.start(learners=2)
    scene.traffic.begin()
    scene.until_learned(20)

    for node in (shard.replica, shard.primary):
        cluster.kill(cluster.nodes.index(node))
        lose_files(node)
    for node in (shard.primary, shard.replica):
        cluster.restart(cluster.nodes.index(node))

    for name, error in scene.until_all_stopped().items():
        assert isinstance(error, MissingBucket), name
        assert "`headrace pserver restore`" in str(error), name

    # what the command does where there is no snapshot
    scene.store.begin(scene.shape)
    assert scene.store.missing() == lost
    for bucket in lost:
        scene.store.load(bucket, 0, {}, [])
    scene.store.finish()

    scene.start(learners=2)
    scene.settle()
    scene.verify()
