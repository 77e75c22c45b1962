"""What a seed decides about its world, before anything happens in it.

Every fault is absent in some worlds and frequent in others: a storm in which everything fails at
once hides what only one fault by itself, or two that meet, can break. Sizes are small, since what
matters is how often things meet, not how many there are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities of what may happen at one call of a process; all zero at rest."""

    crash: float = 0.0
    """The process dies, before the call leaves or before its reply is heard."""
    stall: float = 0.0
    """The process stands still there, while the others go on."""
    stall_after_fold: float = 0.0
    """A keeper stands still when it has folded, before it trims."""
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
    """How long the storm lasts."""
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
    stall_deeds: int
    """What others do at most while a process stands still, if it is the only one that does."""
    zombie_polls: int
    """After how many polls at most a learner hears that a partition is no longer its own."""
    rebalances: float
    reverts: float
    """Failovers: a bucket goes back to what it was some time before."""
    losses: float
    """A bucket comes back empty."""
    clock_jumps: float
    """Of the store's clock, forwards."""
    restarts: float
    """Processes that end in good order, and come back."""
    weather: Weather

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Draw the plan of a seed."""
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
            stall_deeds=8,
            zombie_polls=dice.choice((0, 5, 40)),
            rebalances=some(8.0),
            reverts=some(25.0),
            losses=some(2.0),
            clock_jumps=some(4.0),
            restarts=some(4.0),
            weather=Weather(
                crash=some(0.008),
                stall=some(0.04),
                stall_after_fold=some(0.2),
                lost_request=some(0.1),
                lost_reply=some(0.15),
                stale_reply=some(0.1),
                linger=some(0.15),
                out_of_memory=some(0.1),
                short_reply=some(0.9),
            ),
        )
        theme = dice.random()
        if theme < 0.2:
            return plan._at_war(dice)
        return plan._failing_over(dice) if theme < 0.6 else plan

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

    def __str__(self) -> str:
        """Return what is not zero, on a few lines."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "weather"}
        parts |= {f.name: getattr(self.weather, f.name) for f in fields(self.weather)}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
