"""Servers at the limit of their memory or of their disk: learners wait, and nothing is lost."""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import TYPE_CHECKING

import pytest

from tests.faults.shards import head_of, shard_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.deploy.local.services.valkey import ValkeyCluster, ValkeyNode
    from tests.faults.scene import Scene


def until_refused(scene: Scene, node: ValkeyNode, word: str) -> None:
    """Return when the node refuses pushes with this error and its buckets make no progress."""

    def refused() -> bool:
        errors = [line for line in node.call("INFO", "errorstats").splitlines() if word in line]
        return any(int(line.rpartition("=")[2]) >= 5 for line in errors)

    node.call("CONFIG", "RESETSTAT")
    scene.until(refused, f"{word} of {node.address}")
    key = scene.store.key(scene.buckets_on(node.address)[0], "marks")
    before = head_of(node, key)
    node.call("CONFIG", "RESETSTAT")
    scene.until(refused, f"{word} of {node.address}")
    assert _marks(head_of(node, key)) == _marks(before)


def _marks(head: dict[str, str]) -> dict[str, str]:
    return {name: mark for name, mark in head.items() if "/" in name}


def used_memory(node: ValkeyNode) -> int:
    lines = node.call("INFO", "memory").splitlines()
    return next(int(line.split(":")[1]) for line in lines if line.startswith("used_memory:"))


@pytest.mark.long
def test_keepers_free_memory_on_a_full_server(cluster: ValkeyCluster, scene: Scene) -> None:
    node = shard_at(cluster, scene.store.node_of(0)).primary
    buckets = scene.buckets_on(node.address)

    def log_bytes() -> int:
        heads = scene.heads()
        return sum(heads[bucket].log_bytes for bucket in buckets)

    scene.start(learners=1, keeper=False)
    scene.traffic.examples_a_batch = 500
    scene.traffic.begin()
    scene.until(lambda: log_bytes() > 2 << 20, "logs of 2 MB")
    # less than is used by more than clients' buffers may give back by themselves, and by less than
    # the logs take: only a trim brings the node below it
    node.call("CONFIG", "SET", "maxmemory", used_memory(node) - (512 << 10))
    try:
        until_refused(scene, node, "OOM")
        scene.keep()
        scene.until_learned(20)
    finally:
        node.call("CONFIG", "SET", "maxmemory", 0)
    scene.settle()
    scene.verify()


@pytest.mark.long
def test_learners_resume_when_a_server_gets_more_memory(
    cluster: ValkeyCluster, scene: Scene
) -> None:
    node = shard_at(cluster, scene.store.node_of(0)).primary
    scene.start(learners=2)
    scene.traffic.begin()
    scene.until_learned(20)
    node.call("CONFIG", "SET", "maxmemory", 1)
    try:
        until_refused(scene, node, "OOM")
    finally:
        node.call("CONFIG", "SET", "maxmemory", 0)
    scene.until_learned(20)
    scene.settle()
    scene.verify()


def test_a_learner_waits_until_a_full_server_accepts_the_functions(
    cluster: ValkeyCluster, scene: Scene
) -> None:
    node = shard_at(cluster, scene.store.node_of(0)).primary
    scene.start()
    scene.traffic.begin()
    scene.until_learned(20)
    node.call("CONFIG", "SET", "maxmemory", 1)
    try:
        node.call("FUNCTION", "FLUSH", "SYNC")
        until_refused(scene, node, "OOM")
    finally:
        node.call("CONFIG", "SET", "maxmemory", 0)
    scene.until_learned(20)
    scene.settle()
    scene.verify()


@contextlib.contextmanager
def full_disk(node: ValkeyNode) -> Iterator[None]:
    """The files of the node cannot grow: what it writes fails, as on a disk that is full."""
    limits = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in (node.directory / "appendonlydir").iterdir())
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (largest + 1000, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.skipif(
    sys.platform != "linux", reason="the limit of another process's files is set by Linux alone"
)
def test_learners_wait_for_a_full_disk_and_resume(cluster: ValkeyCluster, scene: Scene) -> None:
    node = shard_at(cluster, scene.store.node_of(0)).primary
    scene.start(learners=2)
    scene.traffic.begin()
    scene.until_learned(20)
    with full_disk(node):
        until_refused(scene, node, "MISCONF")
    scene.until_learned(20)
    scene.settle()
    scene.verify()
