"""Draws the faults of a run from a seed.

The kinds come in rounds: each kind appears once a round, in a drawn order, so that a short run
meets many kinds and a long run meets each often. Now and then two faults come at once, because what
one fault cannot break, two that meet can. The plan has no times of the clock. A step begins when
the pipeline is fresh again after the step before and a drawn pause has passed, so a slow machine
plays the same plan as a fast one, only not as far.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

PAIRS = 0.15
"""Share of the steps with two faults."""
FIRST_PAUSE_S = 10.0


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    shortest_s: float
    longest_s: float
    """Longest time before the fault is removed. 0: it is over at once."""
    targets: tuple[str, ...]
    """A part of headrace, or `broker`, `shard`, `replica`: which one of them is drawn too."""


PARTS = ("server", "keeper", "learner", "joiner")
KINDS = (
    Kind("kill a part", 0.0, 0.0, PARTS),
    Kind("stop a part", 2.0, 15.0, PARTS),
    Kind("kill a broker", 2.0, 12.0, ("broker",)),
    Kind("stop a broker", 2.0, 15.0, ("broker",)),
    Kind("kill a primary", 4.0, 10.0, ("shard",)),
    Kind("stop a primary", 1.0, 8.0, ("shard",)),
    Kind("kill a replica", 2.0, 8.0, ("shard",)),
    Kind("ask for a failover", 0.0, 0.0, ("shard",)),
    Kind("cut a link to Kafka", 1.0, 12.0, ("broker",)),
    Kind("cut a link to Valkey", 1.0, 12.0, ("shard",)),
    Kind("freeze a link to Kafka", 1.0, 12.0, ("broker",)),
    Kind("freeze a link to Valkey", 1.0, 12.0, ("shard",)),
    Kind("fill a disk of Kafka", 3.0, 8.0, ("broker",)),
    Kind("fill a disk of Valkey", 3.0, 10.0, ("shard",)),
    Kind("fill the memory of Valkey", 3.0, 10.0, ("shard",)),
    Kind("limit the memory of a part", 2.0, 8.0, PARTS),
    Kind("step a clock", 3.0, 15.0, ("keeper", "learner", "joiner")),
    Kind("older functions", 0.0, 0.0, ("shard",)),
    Kind("newer functions", 0.0, 0.0, ("fleet",)),
    Kind("one more of a part", 5.0, 12.0, ("keeper", "learner", "joiner")),
    Kind("restore a shard", 0.0, 0.0, ("shard",)),
)
ALONE = ("restore a shard", "newer functions")
"""An operator does these in a pipeline that works otherwise."""
KIND_BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what, to which target, for how long."""

    kind: str
    target: str
    number: int
    """Which of the brokers or shards, from 0."""
    lasts_s: float
    amount: float
    """From -1 to 1: the size and the direction of a step of a clock."""

    @property
    def servers(self) -> str:
        """The servers that it hurts: `Kafka`, `Valkey`, or nothing."""
        return {"broker": "Kafka", "shard": "Valkey"}.get(self.target, "")


@dataclass(frozen=True, slots=True)
class Step:
    """One or two faults that begin together, `pause_s` after the pipeline was fresh again."""

    pause_s: float
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """The kind of the fault, or that there are two."""
        return self.faults[0].kind if len(self.faults) == 1 else "two at once"


def steps(seed: int) -> Iterator[Step]:
    """Yield the steps of a seed, without end."""
    dice = random.Random(seed)
    pause_s = FIRST_PAUSE_S
    while True:
        order = list(KINDS)
        dice.shuffle(order)
        for kind in order:
            faults: tuple[Fault, ...] = (_fault(kind, dice),)
            if kind.name not in ALONE and dice.random() < PAIRS:
                # two servers of a kind at once are more than three copies are made for
                others = [
                    other
                    for other in (_fault(each, dice) for each in KINDS if each.name not in ALONE)
                    if other.kind != kind.name
                    and (not other.servers or other.servers != faults[0].servers)
                ]
                faults = (*faults, dice.choice(others))
            yield Step(pause_s, faults)
            pause_s = dice.uniform(3.0, 9.0)


def _fault(kind: Kind, dice: random.Random) -> Fault:
    return Fault(
        kind.name,
        dice.choice(kind.targets),
        dice.randrange(3),
        round(dice.uniform(kind.shortest_s, kind.longest_s), 1),
        round(dice.uniform(-1.0, 1.0), 3),
    )
