"""A shard that is away with all its nodes, and comes back with its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.learner import process
from headrace.learner.loop.pacing import LearnerPacing
from tests.faults.pipeline import Pipeline
from tests.faults.shards import shard_at

if TYPE_CHECKING:
    from tests.valkey_cluster import ValkeyCluster

LIMIT = 2_000
"""Examples, about a second of the traffic."""


def test_a_learner_waits_at_its_bound_while_a_shard_is_away_and_then_learns_the_rest(
    cluster: ValkeyCluster, pipeline: Pipeline
) -> None:
    shard = shard_at(cluster, pipeline.store.node_of(0))
    pipeline.start(learners=0)
    pipeline.learn("learner", pace=LearnerPacing(unanswered_limit=LIMIT))
    pipeline.traffic.begin()
    pipeline.until_learned(20)
    nodes = [cluster.nodes.index(node) for node in (shard.replica, shard.primary)]
    for node in nodes:
        cluster.kill(node)

    def figure(name: str) -> float:
        registry = process.REGISTRY  # type: ignore[attr-defined]
        sample = f"headrace_learner_{name}", {"model": pipeline.spec.name}
        return registry.get_sample_value(*sample) or 0.0

    pipeline.until(lambda: figure("waiting_for_buckets") == 1, "a learner that waits")
    assert LIMIT <= figure("unanswered_examples") < 2 * LIMIT
    learned, sent = figure("examples_total"), pipeline.traffic.batches
    pipeline.until(lambda: pipeline.traffic.batches > sent + 50, "more traffic")
    assert figure("examples_total") == learned

    for node in reversed(nodes):
        cluster.nodes[node].launch()
    for node in nodes:
        cluster.nodes[node].wait_ready()
    pipeline.until(lambda: figure("waiting_for_buckets") == 0, "a learner that goes on")
    pipeline.settle()
    pipeline.verify()
