"""Checks the servers as a cluster: slots, replicas and failover. Pure functions."""

from collections.abc import Iterator, Sequence

from headrace.deploy.operations.check_result import CheckResult, Severity
from headrace.deploy.operations.server_checks import MOST_NODE_TIMEOUT_MS, SLOTS
from headrace.pserver.inspection.nodes import NodeSurvey

_LEAST_PRIMARIES = 3
"""A failover needs the votes of a majority of the primaries, the dead one included."""


def check_cluster(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    """Check that every slot is served, also after the death of a server."""
    primaries = [
        node
        for node in nodes
        if not node.replica and (node.member.slots or not node.member.identity)
    ]
    replicas = [node for node in nodes if node.replica]
    yield from _node_states(nodes)
    yield from _replicas(primaries, replicas)
    if replicas and any(node.clustered for node in nodes):
        yield from _failover(nodes, primaries)


def _node_states(nodes: Sequence[NodeSurvey]) -> Iterator[CheckResult]:
    for node in nodes:
        member = node.member
        failing = member.flags & {"fail", "fail?"}
        if failing:
            yield CheckResult(
                Severity.BROKEN if member.slots else Severity.WARNING,
                "cluster",
                node.name,
                "a node that the other nodes reach",
                "marked as failed" if "fail" in failing else "suspected to have failed",
                "restart it; if it is gone for good, run CLUSTER FORGET on every node",
            )
        if member.moving:
            yield CheckResult(
                Severity.NOTE,
                "cluster",
                node.name,
                "no slot being moved",
                f"{member.moving} being moved, now or by an interrupted move",
                "wait for the end of the move, or run `redis-cli --cluster fix HOST:PORT`",
            )
        if not (node.answers and node.clustered):
            continue
        if node.info.get("cluster_state") != "ok":
            yield CheckResult(
                Severity.BROKEN,
                "cluster",
                node.name,
                "cluster_state ok",
                f"{node.info.get('cluster_state')}: the node refuses every command (CLUSTERDOWN)",
                "restart the failed nodes, or assign their slots to others",
            )
        assigned = int(node.info.get("cluster_slots_assigned", SLOTS))
        if assigned != SLOTS:
            yield CheckResult(
                Severity.BROKEN,
                "cluster",
                node.name,
                f"all {SLOTS} slots assigned",
                f"{assigned}",
                "CLUSTER ADDSLOTSRANGE the missing slots, or `redis-cli --cluster fix HOST:PORT`",
            )
        if (node.settings or {}).get("cluster-require-full-coverage") == "yes":
            yield CheckResult(
                Severity.WARNING,
                "cluster",
                node.name,
                "cluster-require-full-coverage no",
                "yes: while one shard is down, all others refuse to answer too",
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
                "a replica that takes over after a failure",
                "none: after a failure its buckets are unavailable until it is back",
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
            f"{len(primaries)}: if one dies, no replica is elected",
            "add primaries, or be ready to run CLUSTER FAILOVER TAKEOVER on the replica by hand",
        )
    for node in nodes:
        timeout_ms = int((node.settings or {}).get("cluster-node-timeout", 0))
        if timeout_ms > MOST_NODE_TIMEOUT_MS:
            yield CheckResult(
                Severity.WARNING,
                "cluster",
                node.name,
                f"cluster-node-timeout of {MOST_NODE_TIMEOUT_MS} ms or less",
                f"{timeout_ms} ms, during which a dead primary is not replaced",
                "CONFIG SET cluster-node-timeout 5000",
            )
