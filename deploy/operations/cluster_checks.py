"""What is wrong with the servers as a cluster. Pure, like deploy.operations.server_checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.deploy.operations.server_checks import MOST_NODE_TIMEOUT_MS, SLOTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.pserver.inspection import NodeSurvey

_LEAST_PRIMARIES = 3
"""A failover is voted by a majority of the primaries, and the dead one is one of them."""


def check_cluster(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Every slot is served, and will be when a server dies."""
    primaries = [
        node
        for node in nodes
        if not node.replica and (node.member.slots or not node.member.identity)
    ]
    replicas = [node for node in nodes if node.replica]
    yield from _standing(nodes)
    yield from _replicas(primaries, replicas)
    if replicas and any(node.clustered for node in nodes):
        yield from _failover(nodes, primaries)


def _standing(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    for node in nodes:
        member = node.member
        failing = member.flags & {"fail", "fail?"}
        if failing:
            yield CheckResult(
                Severity.BROKEN if member.slots else Severity.WARNING,
                "cluster",
                node.name,
                "a node that the others reach",
                "they count it as failed" if "fail" in failing else "they suspect that it failed",
                "start it again; if it is gone for good, CLUSTER FORGET it on every node",
            )
        if member.moving:
            yield CheckResult(
                Severity.NOTE,
                "cluster",
                node.name,
                "no slot on its way",
                f"{member.moving} being moved, by hand or by a move that was interrupted",
                "let it end; else `redis-cli --cluster fix HOST:PORT`",
            )
        if not (node.answers and node.clustered):
            continue
        if node.info.get("cluster_state") != "ok":
            yield CheckResult(
                Severity.BROKEN,
                "cluster",
                node.name,
                "cluster_state ok",
                f"{node.info.get('cluster_state')}: it refuses every command (CLUSTERDOWN)",
                "bring back the nodes that fail, or give their slots to others",
            )
        assigned = int(node.info.get("cluster_slots_assigned", SLOTS))
        if assigned != SLOTS:
            yield CheckResult(
                Severity.BROKEN,
                "cluster",
                node.name,
                f"all {SLOTS} slots assigned",
                f"{assigned}",
                "CLUSTER ADDSLOTSRANGE the others, or `redis-cli --cluster fix HOST:PORT`",
            )
        if (node.settings or {}).get("cluster-require-full-coverage") == "yes":
            yield CheckResult(
                Severity.WARNING,
                "cluster",
                node.name,
                "cluster-require-full-coverage no",
                "yes: when one shard is away, all the others refuse to answer as well",
                "CONFIG SET cluster-require-full-coverage no",
            )


def _replicas(
    primaries: Sequence[NodeSurvey], replicas: Sequence[NodeSurvey]
) -> Iterator[CheckResult]:
    copied = {node.member.primary for node in replicas}
    for node in primaries:
        if node.name not in copied:
            yield CheckResult(
                Severity.WARNING if replicas else Severity.NOTE,
                "cluster" if node.member.identity else "replication",
                node.name,
                "a replica, that takes over when it dies",
                "none: its buckets are away until it comes back",
                "add a replica (CLUSTER REPLICATE)"
                if node.member.identity
                else "add a replica (REPLICAOF)",
            )


def _failover(
    nodes: Sequence[NodeSurvey], primaries: Sequence[NodeSurvey]
) -> Iterator[CheckResult]:
    if len(primaries) < _LEAST_PRIMARIES:
        yield CheckResult(
            Severity.WARNING,
            "cluster",
            ", ".join(node.name for node in primaries),
            f"at least {_LEAST_PRIMARIES} primaries: a failover needs a majority of them",
            f"{len(primaries)}: when one dies, no replica is elected",
            "add primaries, or be ready to say CLUSTER FAILOVER TAKEOVER to the replica yourself",
        )
    for node in nodes:
        timeout_ms = int((node.settings or {}).get("cluster-node-timeout", 0))
        if timeout_ms > MOST_NODE_TIMEOUT_MS:
            yield CheckResult(
                Severity.WARNING,
                "cluster",
                node.name,
                f"cluster-node-timeout of {MOST_NODE_TIMEOUT_MS} ms or less",
                f"{timeout_ms} ms, in which a dead primary is not replaced",
                "CONFIG SET cluster-node-timeout 5000",
            )
