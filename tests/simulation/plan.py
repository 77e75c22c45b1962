"""Derives the plan of a world from a seed.

Every fault is absent in some worlds and frequent in others. A storm of all faults at once would
hide bugs that need one fault alone, or two that coincide. Sizes are small, because the number of
coincidences matters and not the amount of data.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields


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
    """Steps of clocks that can be set, forward and back: the store's, and that of each machine."""
    poisoned: float
    """Probability that a batch must be quarantined."""
    gaps: float
    """Probability of aborted transactions before a batch."""
    recreations: float
    """The topic is deleted and made again, and its operator accepts the new one."""
    retention: float
    """Kafka deletes what every bucket has learned, for good."""
    restarts: float
    """Processes that end in good order, and come back."""
    last_failover: bool
    """Whether the storm ends with one, of which servers hear when all is learned again."""
    checked: float
    """Share of the steps after which what a process holds is compared with what it should."""
    weather: Weather
    most_held: int = 0
    """Rows that a learner holds; 0: all."""
    admitted: float = 0.0
    """Probability that a sighting gives an id without a row its own; 0: every id has one."""
    joiners: int = 0
    """0: examples are appended to their topic. Else events are, and joiners make the examples."""
    joiner_steps: float = 0.0
    joiner_polls: int = 3
    """Most events of a source that a joiner reads at once."""
    wait_s: float = 0.0
    """Of the label policy: how long an impression waits for its click."""
    hostile: float = 0.0
    """Probability that a producer sends a backlog of large events, and one that is not an event."""
    far_ahead: float = 0.0
    """Probability that an event is dated hours ahead."""
    forgotten: float = 0.0
    """Kafka forgets the committed offsets of the joiners."""
    silences: float = 0.0
    """A bucket does not answer for a time."""
    slow_links: bool = False
    """Whether links carry less than a round of pushes within a timeout, also in the calm."""
    unanswered_limit: int = 262_144
    """Examples that a learner learns while a bucket does not answer."""
    parked: float = 0.0
    """Probability that the guard of a learner suspects a batch."""
    operators: float = 0.0
    """An operator asks to learn or to drop a parked message."""
    log_cuts: float = 0.0
    """A power loss that ends the learners, and takes the last examples from a log."""
    most_in_message: int = 64
    """Examples that a joiner writes in one message."""
    old_states: float = 0.0
    """Probability that a broker answers a joiner that restores from an old state."""
    old_ends: float = 0.0
    """Probability that a broker that was cut off begins to answer about the ends of logs."""
    broker_clocks: float = 0.0
    """A partition of events moves to a broker whose clock differs."""
    event_cuts: float = 0.0
    """A power loss that ends the joiners, and takes the last events from a log."""

    @classmethod
    def storm(cls, seed: int, dice: random.Random) -> Plan:
        """Draw a plan in which all faults may happen."""

        def some(limit: float) -> float:
            return dice.choice((0.0, 0.0, limit / 4, limit))

        keepers = dice.choice((0, 1, 2, 3))
        batches = dice.randint(4, 16)
        return cls(
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
            poisoned=some(0.2),
            gaps=some(0.3),
            recreations=some(2.0),
            retention=some(6.0),
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

    @property
    def row_limit(self) -> int:
        """`most_rows` if it is an operator's limit in the store; 0 if it is in the spec."""
        return self.most_rows if self.seed % 2 else 0

    def __str__(self) -> str:
        """Return what is not zero, on a few lines."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "weather"}
        parts |= {f.name: getattr(self.weather, f.name) for f in fields(self.weather)}
        return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
