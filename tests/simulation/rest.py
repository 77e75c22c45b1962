"""Checks the invariants after the storm: each example counts once, and all replicas agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.learner.loop.marks.parked_marks import ParkedRequest, parked_messages
from headrace.pserver.errors import Unreachable
from headrace.pserver.replica.replica import Replica
from tests.simulation.bounded import projected
from tests.simulation.ledger import Broken, Row, differences, rows_by_id

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import World


def unlearned(world: World, processes: Sequence[Process] | None = None) -> str:
    """Say what is still to be learned, pushed or followed (by these, or all); empty if nothing."""
    store, plan = world.store, world.plan
    if world.pipeline is not None and (unjoined := world.pipeline.unjoined()):
        return unjoined
    life = world.topic.now
    ends = {name: life.ends[source] for name, source in life.names.items()}
    heads = {}
    for answer in store.marks(range(plan.buckets)):
        assert not isinstance(answer, Unreachable)
        heads[answer.bucket] = (answer.version, answer.nonce)
        if any(answer.marks.get(name, 0) != end for name, end in ends.items()):
            return f"bucket {answer.bucket} has learned up to {answer.marks} of {ends}"
        for parked in parked_messages([answer.marks]):
            there = parked.offset >= life.firsts[life.names[parked.source]]
            if there or parked.request is ParkedRequest.DROP:
                return f"bucket {answer.bucket} has parked {parked}"
    for process in world.followers if processes is None else processes:
        if not process.up:
            return f"{process.name} does not start"
        if reason := _behind(process, heads):
            return reason
    for learner in world.learners:
        if not learner.settled():
            return f"{learner.name} has pushes pending"
    return ""


def _behind(process: Process, heads: dict[int, tuple[int, bytes]]) -> str:
    for bucket in process.buckets:
        head, position = heads[bucket], process.position(bucket)
        if position is None:
            return f"{process.name} has no copy of bucket {bucket}"
        if (position.version, position.nonce) != head:
            version = position.version
            return f"{process.name} has bucket {bucket} at {version}, not {head[0]}"
    return ""


def unkept(world: World) -> str:
    """Say which log or rows keepers still have to make shorter; empty if none, or no keepers."""
    plan, store = world.plan, world.store
    for bucket in range(plan.buckets) if plan.keepers else ():
        entries = store.entries(bucket)
        if entries > 1:  # the last one stays
            return f"the log of bucket {bucket} still has {entries} entries"
        rows = len(store.ledgers[bucket].rows)
        if plan.most_rows and rows > max(1, plan.most_rows // plan.buckets):
            return f"bucket {bucket} still has {rows} rows"
    return ""


def verify(world: World) -> None:
    """Raise Broken unless counters are exact, and all replicas equal bit for bit."""
    fresh = Replica(world.store, world.shape)
    while not fresh.complete:
        fresh.poll()
    found = rows_by_id(fresh.table.everything())
    listed: dict[int, Row] = {}
    for ledger in world.store.ledgers.values():
        listed |= ledger.rows
    if wrong := differences(found, listed):
        raise Broken(f"rows and log are not what was appended: {wrong}")
    if not (world.plan.expire_after_s or world.plan.most_rows):
        counted = projected({row_id: row[:5] for row_id, row in found.items()}, world.plan)
        marks = [world.store.state(bucket).marks for bucket in range(world.plan.buckets)]
        dropped = [world.store.ledgers[bucket].dropped for bucket in range(world.plan.buckets)]
        truth = projected(world.topic.truth(marks, dropped), world.plan)
        if wrong := differences(counted, truth):
            raise Broken(f"rows are not what a run without faults makes: {wrong}")
        if world.pipeline is not None:
            world.pipeline.verify(counted)
    parked = parked_messages(
        state.marks for state in map(world.store.state, range(world.plan.buckets))
    )
    named = {(int(each.source.rpartition("/")[2]), each.offset) for each in parked}
    if lacking := set(world.topic.without_letter()) - named:
        raise Broken(f"quarantined batches without a dead letter: {lacking}")
    for process in world.followers:
        process.check()
        replica = process.replica
        for bucket in replica.buckets if replica else ():
            if replica and replica.checksum(bucket) != fresh.checksum(bucket):
                raise Broken(f"bucket {bucket} of {process.name} differs from a fresh copy")
    for learner in world.learners:
        learner.check_view()
