"""Draws the plan of a seed: a kind of world, and how often each fault happens in it.

A kind narrows the plan of a storm to one race between faults. Rarer races get more seeds.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from tests.simulation.plan import CALM, Plan, Weather

_UNDISTURBED: dict[str, Any] = {
    "losses": 0.0,
    "clock_jumps": 0.0,
    "poisoned": 0.0,
    "gaps": 0.0,
    "recreations": 0.0,
    "retention": 0.0,
    "expire_after_s": 0,
    "most_rows": 0,
}
"""Nothing happens to the topic of examples and to clocks, and no row expires."""


def draw_plan(seed: int, about: str | None = None) -> Plan:
    """Draw the plan of a seed. about: the kind of world, see KINDS; None draws it too."""
    dice = random.Random(seed)
    plan = Plan.storm(seed, dice)
    [drawn] = dice.choices(list(KINDS), [kind.share for kind in KINDS.values()])
    if drawn == "joined" and seed % 2:
        drawn = "late requests"
    kind = KINDS[about or drawn]
    return kind.narrowed(plan, dice) if kind.narrowed else plan


def _at_war(plan: Plan, dice: random.Random) -> Plan:
    """Keepers that take one bucket from each other all the time."""
    return replace(
        plan,
        buckets=1,
        learners=dice.choice((2, 3)),
        keepers=dice.choice((2, 3)),
        push_interval_ms=0,
        values=2,
        keep_ms=dice.choice((0, 80)),
        keep_bytes=4000,
        lease_ms=dice.choice((60, 300)),
        reverts=dice.choice((0.0, 15.0)),
        weather=replace(plan.weather, stall_after_fold=0.7),
    )


def _failing_over(plan: Plan, dice: random.Random) -> Plan:
    """One bucket that goes back again and again, while it is copied, folded and pushed to."""
    return replace(
        plan,
        buckets=1,
        partitions=dice.choice((2, 3)),
        learners=dice.choice((2, 3)),
        keepers=dice.choice((1, 2)),
        servers=dice.choice((1, 2)),
        warm_batches=5,
        batches=14,
        deeds=100,
        values=6,
        push_interval_ms=0,
        keep_ms=dice.choice((0, 2000)),
        keep_bytes=dice.choice((0, 600, 1200)),
        rows_a_fold=50,
        lease_ms=dice.choice((60, 5000)),
        reverts=8.0,
        losses=dice.choice((0.0, 0.0, 0.0, 2.0)),
        restarts=3.0,
        stall_deeds=20,
        weather=replace(plan.weather, stall=0.03, short_reply=0.5),
    )


def _small(plan: Plan, **changes: Any) -> Plan:
    """One bucket, a few hot rows, and no fault but those that are named: cheap seeds.

    Rows are compared after every step, because the next failover would repair them.
    """
    nothing: dict[str, Any] = {
        **_UNDISTURBED,
        "rebalances": 0.0,
        "reverts": 0.0,
        "restarts": 0.0,
        "log_bytes_limit": 64 << 20,
        "weather": CALM,
    }
    small: dict[str, Any] = {"buckets": 1, "values": 2, "push_interval_ms": 0, "rows_a_fold": 50}
    return replace(plan, checked=1.0, remembered=1.0, **(nothing | small | changes))


def _cut_off(plan: Plan, dice: random.Random) -> Plan:
    """Servers that see nothing between a failover and the end of its repair.

    The head is then where it was, or below, and nothing follows that would tell.
    """
    return _small(
        plan,
        partitions=dice.choice((1, 2)),
        learners=1,
        keepers=dice.choice((0, 1)),
        servers=2,
        warm_batches=dice.choice((0, 2)),
        batches=4,
        deeds=20,
        reverts=4.0,
        last_failover=True,
    )


def _handing_over(plan: Plan, dice: random.Random) -> Plan:
    """Keepers that follow each other soon, while failovers lose what the one before folded."""
    return _small(
        plan,
        partitions=1,
        learners=1,
        keepers=2,
        servers=0,
        batches=8,
        deeds=100,
        keep_ms=100,
        keep_bytes=4000,
        lease_ms=200,
        learner_steps=20.0,
        keeper_steps=40.0,
        reverts=20.0,
        farther=0.6,
        clock_jumps=20.0,
        restarts=20.0,
    )


def _followed(plan: Plan, **changes: Any) -> Plan:
    """Two servers that copy one bucket, beside a keeper that folds it often."""
    common: dict[str, Any] = {
        "partitions": 2,
        "learners": 2,
        "keepers": 1,
        "servers": 2,
        "lease_ms": 5000,
        "keeper_steps": 40.0,
        "restarts": 10.0,
    }
    return _small(plan, **(common | changes))


def _without_readers(plan: Plan, **changes: Any) -> Plan:
    """Three learners that take partitions from each other; no keeper, no server."""
    common: dict[str, Any] = {
        "partitions": 3,
        "learners": 3,
        "keepers": 0,
        "servers": 0,
        "batches": 30,
        "rebalances": 12.0,
    }
    return _small(plan, **(common | changes))


def _copying(plan: Plan, dice: random.Random) -> Plan:
    """Copies during which a keeper folds the rows further, and failovers that undo those folds.

    The log is kept for so long that it is not trimmed during a copy.
    """
    return _followed(
        plan,
        warm_batches=6,
        batches=40,
        deeds=150,
        values=3,
        keep_ms=5000,
        keep_bytes=1500,
        rebalances=6.0,
        reverts=1.0,
        farther=0.1,
        deepest=1,
        weather=Weather(stall_copying=0.6),
    )


def _unfolding(plan: Plan, dice: random.Random) -> Plan:
    """Copies and folds that pause while failovers undo folds."""
    return _followed(
        plan,
        warm_batches=2,
        batches=10,
        deeds=60,
        keep_ms=0,
        keep_bytes=0,
        learner_steps=40.0,
        reverts=10.0,
        stall_deeds=16,
        weather=Weather(stall=0.1, stall_copying=0.5),
    )


def _overtaken(plan: Plan, dice: random.Random) -> Plan:
    """Learners whose pushes arrive behind others that a failover made anew."""
    return _without_readers(plan, deeds=120, reverts=20.0, weather=Weather(slow_answer=0.7))


def _unanswered(plan: Plan, dice: random.Random) -> Plan:
    """Learners that often lose the reply to a push, while others push too."""
    return _without_readers(plan, deeds=90, weather=Weather(lost_reply=0.2, slow_answer=0.7))


def _poisoned(plan: Plan, dice: random.Random) -> Plan:
    """Batches to quarantine, while pushes fly and buckets go back."""
    return replace(
        plan,
        partitions=dice.choice((1, 2)),
        learners=dice.choice((1, 2)),
        servers=0,
        push_interval_ms=dice.choice((0, 20)),
        poisoned=dice.choice((0.15, 0.4)),
        reverts=dice.choice((0.0, 8.0)),
        rebalances=dice.choice((0.0, 6.0)),
        weather=replace(plan.weather, slow_answer=dice.choice((0.3, 0.7))),
    )


def _made_again(plan: Plan, dice: random.Random) -> Plan:
    """A topic that is deleted and made again, and from which Kafka deletes old records."""
    return replace(
        plan,
        partitions=dice.choice((1, 2)),
        servers=0,
        recreations=dice.choice((2.0, 6.0)),
        retention=dice.choice((0.0, 8.0)),
        gaps=0.2,
    )


def _restored_before(plan: Plan, dice: random.Random) -> Plan:
    """Buckets that are restored from before the topic that their operator accepted."""
    return replace(
        _made_again(plan, dice),
        buckets=dice.choice((2, 4)),
        partitions=dice.choice((1, 2)),
        warm_batches=4,
        losses=6.0,
        recreations=3.0,
        weather=replace(plan.weather, crash=0.0),
    )


def _joined(plan: Plan, dice: random.Random) -> Plan:
    """Events that joiners make examples of: each counts once, from its producer to its rows."""
    calm = not plan.weather.lost_request  # elsewhere aborted transactions are looked at
    cuts = random.Random(plan.seed ^ 0xC07).choice((0.0, 2.0)) if calm else 0.0
    hostile = dice.choice((0.0, 0.08))
    # clients that log lost connections (`Broker.silent`) have their own check to prove
    brokers = random.Random(plan.seed ^ 0xC10C) if plan.seed % 4 else None
    return replace(
        plan,
        broker_clocks=brokers.choice((0.0, 3.0)) if brokers else 0.0,
        old_ends=brokers.choice((0.0, 0.3)) if brokers else 0.0,
        partitions=dice.choice((1, 2)),
        buckets=dice.choice((1, 2)),
        learners=dice.choice((1, 2)),
        keepers=min(plan.keepers, 1),
        servers=0,
        batches=min(plan.batches, 10),
        deeds=min(plan.deeds, 60),
        joiners=dice.choice((1, 2, 3)),
        joiner_steps=60.0,
        joiner_polls=60 if hostile else 6,
        wait_s=random.Random(plan.seed ^ 0x3A17).choice((0.0, 0.05, 0.4, 3.0)) if brokers else 0.0,
        hostile=hostile,
        far_ahead=dice.choice((0.0, 0.1)),
        forgotten=dice.choice((0.0, 4.0)),
        event_cuts=cuts,
        old_states=dice.choice((0.0, 0.3)),
        rebalances=dice.choice((0.0, 12.0)),
        last_failover=False,
        **_UNDISTURBED,
    )


def _late_requests(plan: Plan, dice: random.Random) -> Plan:
    """Joiners with transactions of several messages, and requests that arrive late within them."""
    joined = _joined(plan, dice)
    return replace(
        joined,
        partitions=1,
        buckets=1,
        learners=1,
        keepers=0,
        joiners=dice.choice((1, 2)),
        batches=16,
        deeds=50,
        joiner_steps=30.0,
        joiner_polls=30,
        most_in_message=2,
        log_bytes_limit=64 << 20,
        event_cuts=0.0,
        reverts=0.0,
        old_states=0.0,
        weather=Weather(lost_request=0.25, lost_reply=dice.choice((0.0, 0.3)), crash=0.002),
    )


def _hard_to_reach(plan: Plan, dice: random.Random) -> Plan:
    """A bucket that does not answer for long, while examples for it go on, and slow links."""
    return _small(
        plan,
        buckets=2,
        partitions=1,
        learners=1,
        keepers=dice.choice((0, 1)),
        servers=0,
        batches=40,
        deeds=120,
        silences=6.0,
        slow_links=dice.random() < 0.5,
        unanswered_limit=12,
    )


def _cut_short(plan: Plan, dice: random.Random) -> Plan:
    """Logs that lose their ends, also what was learned, and grow again."""
    return _small(
        plan,
        partitions=dice.choice((1, 2)),
        learners=dice.choice((1, 2)),
        keepers=0,
        servers=0,
        batches=12,
        deeds=50,
        log_cuts=2.0,
        restarts=4.0,
    )


def _bounded(plan: Plan, dice: random.Random) -> Plan:
    """Learners that hold few rows, with admission of ids, under all faults."""
    return replace(
        plan,
        partitions=dice.choice((1, 2)),
        buckets=dice.choice((1, 2)),
        learners=dice.choice((1, 2)),
        servers=0,
        values=8,
        most_held=dice.choice((0, 12, 24)),
        admitted=dice.choice((0.0, 0.3)),
        losses=0.0,
        recreations=0.0,
        expire_after_s=0,
        most_rows=0,
    )


def _parked(plan: Plan, dice: random.Random) -> Plan:
    """A guard that suspects at random, learners that take over from each other, and operators."""
    return replace(
        plan,
        partitions=dice.choice((1, 2)),
        learners=dice.choice((1, 2)),
        servers=0,
        push_interval_ms=dice.choice((0, 20)),
        parked=dice.choice((0.2, 0.5)),
        operators=dice.choice((0.0, 4.0)),
        poisoned=dice.choice((0.0, 0.1)),
        reverts=dice.choice((0.0, 8.0)),
        rebalances=dice.choice((0.0, 6.0)),
        restarts=4.0,
        recreations=0.0,
        expire_after_s=0,
        most_rows=0,
        weather=replace(
            plan.weather,
            crash=dice.choice((0.0, 0.01)),
            slow_answer=dice.choice((0.3, 0.7)),
            lost_reply=0.1,
        ),
    )


class _Kind(NamedTuple):
    share: float
    narrowed: Callable[[Plan, random.Random], Plan] | None


KINDS = {
    "storm": _Kind(0.09, None),
    "poisoned": _Kind(0.06, _poisoned),
    "made again": _Kind(0.04, _made_again),
    "restored before": _Kind(0.02, _restored_before),
    "hard to reach": _Kind(0.02, _hard_to_reach),
    "cut short": _Kind(0.02, _cut_short),
    "bounded": _Kind(0.04, _bounded),
    "parked": _Kind(0.08, _parked),
    "joined": _Kind(0.06, _joined),
    "at war": _Kind(0.11, _at_war),
    "failing over": _Kind(0.14, _failing_over),
    "cut off": _Kind(0.10, _cut_off),
    "handing over": _Kind(0.13, _handing_over),
    "copying": _Kind(0.13, _copying),
    "unfolding": _Kind(0.06, _unfolding),
    "overtaken": _Kind(0.08, _overtaken),
    "unanswered": _Kind(0.05, _unanswered),
    "late requests": _Kind(0.0, _late_requests),  # half of the joined ones
}
"""Kinds of worlds and their share of the seeds."""
