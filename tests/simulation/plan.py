"""Derives the plan of a world from a seed.

Every fault is absent in some worlds and frequent in others: a storm in which everything fails at
once hides what only one fault by itself, or two that meet, can break. Sizes are small, since what
matters is how often things meet, not how many there are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities of what may happen at one call of a process; all zero at rest."""

    crash: float = 0.0
    """The process dies, before the call leaves or before its reply is heard."""
    stall: float = 0.0
    """The process pauses there, while the others go on."""
    stall_after_fold: float = 0.0
    """A keeper pauses after it has folded and before it trims."""
    stall_copying: float = 0.0
    """A process that copies a bucket pauses before each chunk of rows."""
    slow_answer: float = 0.0
    """The answer to a push is not there yet when a learner asks for it."""
    lost_request: float = 0.0
    lost_reply: float = 0.0
    stale_reply: float = 0.0
    """A poll or the marks are answered with what was answered some time ago."""
    linger: float = 0.0
    """The request stays in the network, alone or as a double, and arrives some time later."""
    out_of_memory: float = 0.0
    short_reply: float = 0.0
    """A poll brings one entry only."""


CALM = Weather()


@dataclass(frozen=True, slots=True)
class Plan:
    """One world. Frequencies are in deeds, where all steps of all processes are 100."""

    seed: int
    partitions: int
    buckets: int
    learners: int
    keepers: int
    servers: int
    warm_batches: int
    """Pairs of batches before the storm."""
    batches: int
    deeds: int
    """Length of the storm."""
    values: int
    """Different values of a field: few make hot rows, many make large buckets."""
    push_interval_ms: int
    log_bytes_limit: int
    keep_ms: int
    keep_bytes: int
    rows_a_fold: int
    lease_ms: int
    expire_after_s: int
    most_rows: int
    """Limits at which keepers delete rows; 0 in most worlds, where counters must be exact."""
    learner_steps: float
    """Share of the steps that a learner does."""
    keeper_steps: float
    """The same of each keeper."""
    stall_deeds: int
    """Most deeds of others while one process pauses, if no other pauses."""
    failing_over: float
    """Share of the stalls that begin with a failover, where there are any."""
    deepest: int
    """Depth of nested pauses."""
    zombie_polls: int
    """After how many polls at most a learner hears that a partition is no longer its own."""
    rebalances: float
    reverts: float
    """Failovers: a bucket goes back to what it was some time before."""
    remembered: float
    """Share of the changes before which a bucket is remembered: what failovers can go back to."""
    farther: float
    """Probability that a failover goes back to one change earlier, and then to one more, ..."""
    losses: float
    """A bucket comes back empty."""
    clock_jumps: float
    """Forward jumps of the store's clock."""
    restarts: float
    """Processes that end in good order, and come back."""
    last_failover: bool
    """Whether the storm ends with one, of which servers hear when all is learned again."""
    checked: float
    """Share of the steps after which what a process holds is compared with what it should."""
    weather: Weather

    @classmethod
    def draw(cls, seed: int, about: str | None = None) -> Plan:
        """Draw the plan of a seed; `about`: of a kind of world that is named, see KINDS."""
        dice = random.Random(seed)

        def some(limit: float) -> float:
            return dice.choice((0.0, 0.0, limit / 4, limit))

        keepers = dice.choice((0, 1, 2, 3))
        batches = dice.randint(4, 16)
        plan = cls(
            seed=seed,
            partitions=dice.randint(1, 3),
            buckets=dice.choice((1, 2, 2, 4)),
            learners=dice.randint(1, 3),
            keepers=keepers,
            servers=dice.choice((0, 1, 2)),
            warm_batches=dice.choice((0, 2, 4)),
            batches=batches,
            deeds=batches * dice.choice((5, 8)),
            values=dice.choice((2, 4, 6)),
            push_interval_ms=dice.choice((0, 20)),
            log_bytes_limit=dice.choice((6000, 64 << 20)) if keepers else 64 << 20,
            keep_ms=dice.choice((0, 100, 300)),
            keep_bytes=dice.choice((0, 600, 4000)),
            rows_a_fold=dice.choice((1, 2, 4, 50)),
            lease_ms=dice.choice((60, 400, 2000)),
            expire_after_s=dice.choice((2, 5)) if dice.random() < 0.1 else 0,
            most_rows=dice.choice((8, 16)) if dice.random() < 0.1 else 0,
            learner_steps=80.0,
            keeper_steps=20.0,
            stall_deeds=8,
            failing_over=0.4,
            deepest=3,
            zombie_polls=dice.choice((0, 5, 40)),
            rebalances=some(8.0),
            reverts=some(25.0),
            remembered=0.5,
            farther=0.3,
            losses=some(2.0),
            clock_jumps=some(4.0),
            restarts=some(4.0),
            last_failover=dice.random() < 0.1,
            checked=0.1,
            weather=Weather(
                crash=some(0.008),
                stall=some(0.04),
                stall_after_fold=some(0.2),
                slow_answer=dice.choice((0.0, 0.3, 0.7)),
                lost_request=some(0.1),
                lost_reply=some(0.15),
                stale_reply=some(0.1),
                linger=some(0.15),
                out_of_memory=some(0.1),
                short_reply=some(0.9),
            ),
        )
        [drawn] = dice.choices(list(KINDS), [kind.share for kind in KINDS.values()])
        kind = KINDS[about or drawn]
        return kind.narrowed(plan, dice) if kind.narrowed else plan

    def _at_war(self, dice: random.Random) -> Plan:
        """Keepers that take one bucket from each other all the time."""
        return replace(
            self,
            buckets=1,
            learners=dice.choice((2, 3)),
            keepers=dice.choice((2, 3)),
            push_interval_ms=0,
            values=2,
            keep_ms=dice.choice((0, 80)),
            keep_bytes=4000,
            lease_ms=dice.choice((60, 300)),
            reverts=dice.choice((0.0, 15.0)),
            weather=replace(self.weather, stall_after_fold=0.7),
        )

    def _failing_over(self, dice: random.Random) -> Plan:
        """One bucket that goes back again and again, while it is copied, folded and pushed to."""
        return replace(
            self,
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
            weather=replace(self.weather, stall=0.03, short_reply=0.5),
        )

    def _small(self, **changes: Any) -> Plan:
        """One bucket, a few hot rows, and no fault but those that are named: cheap seeds.

        Rows are compared after every step, because the next failover would repair them.
        """
        nothing: dict[str, Any] = {
            "rebalances": 0.0,
            "reverts": 0.0,
            "losses": 0.0,
            "clock_jumps": 0.0,
            "restarts": 0.0,
            "log_bytes_limit": 64 << 20,
            "expire_after_s": 0,
            "most_rows": 0,
            "weather": CALM,
        }
        small: dict[str, Any] = {
            "buckets": 1,
            "values": 2,
            "push_interval_ms": 0,
            "rows_a_fold": 50,
        }
        return replace(self, checked=1.0, remembered=1.0, **(nothing | small | changes))

    def _cut_off(self, dice: random.Random) -> Plan:
        """Servers that see nothing between a failover and the end of its repair.

        The head is then where it was, or below, and nothing follows that would tell.
        """
        return self._small(
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

    def _handing_over(self, dice: random.Random) -> Plan:
        """Keepers that follow each other soon, while failovers lose what the one before folded."""
        return self._small(
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

    def _copying(self, dice: random.Random) -> Plan:
        """Copies under which rows are folded further, and failovers that take just that back.

        The log is kept for so long that it is not trimmed under the copy.
        """
        return self._small(
            partitions=2,
            learners=2,
            keepers=1,
            servers=2,
            warm_batches=6,
            batches=40,
            deeds=150,
            values=3,
            keep_ms=5000,
            keep_bytes=1500,
            lease_ms=5000,
            keeper_steps=40.0,
            rebalances=6.0,
            reverts=1.0,
            farther=0.1,
            restarts=10.0,
            deepest=1,
            weather=Weather(stall_copying=0.6),
        )

    def _unfolding(self, dice: random.Random) -> Plan:
        """Copies and folds that pause while failovers undo folds."""
        return self._small(
            partitions=2,
            learners=2,
            keepers=1,
            servers=2,
            warm_batches=2,
            batches=10,
            deeds=60,
            keep_ms=0,
            keep_bytes=0,
            lease_ms=5000,
            learner_steps=40.0,
            keeper_steps=40.0,
            reverts=10.0,
            restarts=10.0,
            stall_deeds=16,
            weather=Weather(stall=0.1, stall_copying=0.5),
        )

    def _overtaken(self, dice: random.Random) -> Plan:
        """Learners whose pushes arrive behind others that a failover made anew."""
        return self._small(
            partitions=3,
            learners=3,
            keepers=0,
            servers=0,
            batches=30,
            deeds=120,
            rebalances=12.0,
            reverts=20.0,
            weather=Weather(slow_answer=0.7),
        )

    def _unanswered(self, dice: random.Random) -> Plan:
        """Learners that seldom hear what became of a push, while others push too."""
        return self._small(
            partitions=3,
            learners=3,
            keepers=0,
            servers=0,
            batches=30,
            deeds=90,
            rebalances=12.0,
            weather=Weather(lost_reply=0.2, slow_answer=0.7),
        )

    def __str__(self) -> str:
        """Return what is not zero, on a few lines."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "weather"}
        parts |= {f.name: getattr(self.weather, f.name) for f in fields(self.weather)}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)


class _Kind(NamedTuple):
    share: float
    narrowed: Callable[[Plan, random.Random], Plan] | None


KINDS = {
    "storm": _Kind(0.15, None),
    "at war": _Kind(0.12, Plan._at_war),
    "failing over": _Kind(0.16, Plan._failing_over),
    "cut off": _Kind(0.10, Plan._cut_off),
    "handing over": _Kind(0.13, Plan._handing_over),
    "copying": _Kind(0.14, Plan._copying),
    "unfolding": _Kind(0.06, Plan._unfolding),
    "overtaken": _Kind(0.09, Plan._overtaken),
    "unanswered": _Kind(0.05, Plan._unanswered),
}
"""Kinds of worlds and their share of a hundred seeds. Rarer races get more seeds."""
