"""A shard that is away with all its nodes, and comes back with its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.learner import process
from headrace.learner.loop.pacing import LearnerPacing
from tests.faults.shards import shard_at

if TYPE_CHECKING:
    from headrace.deploy.local.services.valkey import ValkeyCluster
    from tests.faults.scene import Scene

LIMIT = 2_000
"""Examples, about a second of the traffic."""


def test_a_learner_waits_at_its_bound_while_a_shard_is_away_and_then_learns_the_rest(
    cluster: ValkeyCluster, scene: Scene
) -> None:
    shard = shard_at(cluster, scene.store.node_of(0))
    scene.start(learners=0)
    scene.learn("learner", pace=LearnerPacing(unanswered_limit=LIMIT))
    scene.traffic.begin()
    scene.until_learned(20)
    nodes = [cluster.nodes.index(node) for node in (shard.replica, shard.primary)]
    for node in nodes:
        cluster.kill(node)

    def figure(name: str) -> float:
        registry = process.REGISTRY  # type: ignore[attr-defined]
        sample = f"headrace_learner_{name}", {"model": scene.spec.name}
        return registry.get_sample_value(*sample) or 0.0

    scene.until(lambda: figure("waiting_for_buckets") == 1, "a learner that waits")
    assert LIMIT <= figure("unanswered_examples") < 2 * LIMIT
    learned, sent = figure("examples_total"), scene.traffic.batches
    scene.until(lambda: scene.traffic.batches > sent + 50, "more traffic")
    assert figure("examples_total") == learned

    for node in reversed(nodes):
        cluster.nodes[node].launch()
    for node in nodes:
        cluster.nodes[node].wait_ready()
    scene.until(lambda: figure("waiting_for_buckets") == 0, "a learner that goes on")
    scene.settle()
    scene.verify()
