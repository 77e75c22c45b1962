"""A server at the limit of its disk: learners wait, and nothing is lost. Chaos fills the memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.faults.shards import full_disk, head_of, shard_at

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
