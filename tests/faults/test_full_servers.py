"""Servers at the limit of their memory or of their disk: learners wait, and nothing is lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.faults.shards import full_disk, head_of, shard_at, used_memory

if TYPE_CHECKING:
    from tests.faults.pipeline import Pipeline
    from tests.valkey_cluster import ClusterNode, ValkeyCluster


def until_refused(pipeline: Pipeline, node: ClusterNode, word: str) -> None:
    """Return when the node refuses pushes with this error and its buckets make no progress."""

    def refused() -> bool:
        errors = [line for line in node.call("INFO", "errorstats").splitlines() if word in line]
        return any(int(line.rpartition("=")[2]) >= 5 for line in errors)

    node.call("CONFIG", "RESETSTAT")
    pipeline.until(refused, f"{word} of {node.address}")
    key = pipeline.store.key(pipeline.buckets_on(node.address)[0], "marks")
    before = head_of(node, key)
    node.call("CONFIG", "RESETSTAT")
    pipeline.until(refused, f"{word} of {node.address}")
    assert _marks(head_of(node, key)) == _marks(before)


def _marks(head: dict[str, str]) -> dict[str, str]:
    return {name: mark for name, mark in head.items() if "/" in name}


@pytest.mark.long
def test_keepers_free_memory_on_a_full_server(cluster: ValkeyCluster, pipeline: Pipeline) -> None:
    node = shard_at(cluster, pipeline.store.node_of(0)).primary
    buckets = pipeline.buckets_on(node.address)

    def log_bytes() -> int:
        heads = pipeline.heads()
        return sum(heads[bucket].log_bytes for bucket in buckets)

    pipeline.start(learners=1, keeper=False)
    pipeline.traffic.examples_a_batch = 500
    pipeline.traffic.begin()
    pipeline.until(lambda: log_bytes() > 2 << 20, "logs of 2 MB")
    # less than is used by more than clients' buffers may give back by themselves, and by less than
    # the logs take: only a trim brings the node below it
    node.call("CONFIG", "SET", "maxmemory", used_memory(node) - (512 << 10))
    try:
        until_refused(pipeline, node, "OOM")
        pipeline.keep()
        pipeline.until_learned(20)
    finally:
        node.call("CONFIG", "SET", "maxmemory", 0)
    pipeline.settle()
    pipeline.verify()


@pytest.mark.skipif(
    sys.platform != "linux", reason="the limit of another process's files is set by Linux alone"
)
def test_learners_wait_for_a_full_disk_and_resume(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> None:
    node = shard_at(cluster, pipeline.store.node_of(0)).primary
    pipeline.start(learners=2)
    pipeline.traffic.begin()
    pipeline.until_learned(20)
    with full_disk(node):
        until_refused(pipeline, node, "MISCONF")
    pipeline.until_learned(20)
    pipeline.settle()
    pipeline.verify()
