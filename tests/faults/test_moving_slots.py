"""Slots that move to another shard while learners push into them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.crc import key_slot

from headrace.deploy.local.services.waiting import wait_until
from tests.faults.shards import DEADLINE_S, expect, shard_at, shards_of

if TYPE_CHECKING:
    from tests.faults.pipeline import Pipeline
    from tests.valkey_cluster import ClusterNode, ValkeyCluster

MOVED = 3
"""Buckets moved in a test, so that others of the same learner stay where they are."""


def source_and_target(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> tuple[ClusterNode, ClusterNode]:
    source = shard_at(cluster, pipeline.store.node_of(0)).primary
    target = next(s.primary for s in shards_of(cluster) if s.primary is not source)
    return source, target


def slots_of(pipeline: Pipeline, source: ClusterNode) -> dict[int, int]:
    """Some buckets on this node, and the slot of each."""
    buckets = pipeline.buckets_on(source.address)[:MOVED]
    return {bucket: key_slot(pipeline.store.key(bucket, "marks")) for bucket in buckets}


@pytest.mark.long
def test_no_example_is_lost_while_slots_move_key_by_key(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> None:
    source, target = source_and_target(cluster, pipeline)
    host, port = target.address.split(":")
    pipeline.start(learners=2)
    pipeline.traffic.begin()
    pipeline.until_learned(20)
    source_id, target_id = source.call("CLUSTER", "MYID"), target.call("CLUSTER", "MYID")
    slots = slots_of(pipeline, source)
    for bucket, slot in slots.items():
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        source.call("CONFIG", "RESETSTAT")
        source.call("MIGRATE", host, port, pipeline.store.key(bucket, "log").decode(), 0, 5000)
        pipeline.until(lambda: "TRYAGAIN" in source.call("INFO", "errorstats"), "half a bucket hit")
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 1).split():
            source.call("MIGRATE", host, port, keys[0], 0, 5000)
        for node in (target, source):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", target_id)
    pipeline.until_learned(20)
    pipeline.settle()
    pipeline.verify()
    assert {pipeline.store.node_of(bucket) for bucket in slots} == {target.address}


def test_no_example_is_lost_while_slots_move_at_once(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> None:
    source, target = source_and_target(cluster, pipeline)
    try:
        source.call("CLUSTER", "GETSLOTMIGRATIONS")
    except ValueError as error:
        pytest.skip(f"CLUSTER MIGRATESLOTS came with Valkey 9: {error}")
    pipeline.start(learners=2)
    pipeline.traffic.begin()
    pipeline.until_learned(20)
    slots = slots_of(pipeline, source)
    ranges = [word for slot in slots.values() for word in (slot, slot)]
    target_id = target.call("CLUSTER", "MYID")
    source.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *ranges, "NODE", target_id)

    def moved() -> bool:
        states = source.call("CLUSTER", "GETSLOTMIGRATIONS").splitlines()
        assert "failed" not in states
        assert "cancelled" not in states
        return states[states.index("state") + 1] == "success"

    expect(wait_until(moved, DEADLINE_S), "the slots moved")
    pipeline.until_learned(20)
    pipeline.settle()
    pipeline.verify()
    assert {pipeline.store.node_of(bucket) for bucket in slots} == {target.address}
