"""The world: a topic, a store, learners and keepers, and what the seed does to them.

Every batch of examples says what its rows gain in whole numbers, so that the truth is a sum that
does not depend on the order of additions. After the storm all faults stop, everybody may finish,
and then must hold: rows equal to the truth to the unit, marks at the ends of the topic, every
replica equal to every other bit for bit, and nobody waiting for ever.
"""

from __future__ import annotations

import random
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ingest.examples import Encoded, Examples, Kind, pack
from ingest.fakes import ListWriter
from ingest.fields import SpecText, parse_fields
from learner.loop import Learner, Pace
from pserver.errors import Unreachable
from pserver.gains import NEVER
from pserver.keeper import Keeper, Keeping
from pserver.memory_store import MemoryStore
from pserver.replica import Replica
from pserver.store import Shape
from pserver.table import RowTable, find_or_add
from tests.simulation.kafka import Group, SimulatedTopic
from tests.simulation.network import Crash, FaultyStore, SimulatedExchange, Weather

if TYPE_CHECKING:
    import numpy.typing as npt

    from learner.pending import Gaining
    from pserver.memory_store import BucketState
    from pserver.store import Push

_SPEC = """
[label]
policy = "immediate"
[fields.user]
number = 1
transform = "id"
[fields.item]
number = 2
transform = "id"
[fields.pair]
number = 3
transform = "cross"
of = ["user", "item"]
"""
_T0_MS = 1_700_000_000_000
_SINGLES = 3


class Broken(AssertionError):
    """A promise did not hold."""


class CountingModel:
    """A model whose steps are whole numbers, exact in float32 in any order."""

    def rows_needed(self, examples: Examples) -> int:
        return len(examples) * _SINGLES

    def learn(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        shift = np.uint64(65 - active.shape[0].bit_length())
        columns = view.columns
        scores = np.full(len(examples), np.nan)
        for i in range(len(examples)):
            shown = examples.kinds[i] == Kind.SHOWN
            if shown:
                scores[i] = 0.5
            second = int(examples.event_ms[i]) // 1000
            for row_id in examples.features.ids[i]:
                bucket = int(row_id >> shift) if active.shape[0] > 1 else 0
                if not active[bucket]:
                    continue
                place = find_or_add(columns, row_id)
                if not gaining.touched[place]:
                    gaining.touched[place] = True
                    gaining.order[gaining.count[0]] = place
                    gaining.count[0] += 1
                for side in (columns, gaining):
                    if shown:
                        side.shows[place] += 1
                    else:
                        side.clicks[place] += 1
                    side.first_seen[place] = min(int(side.first_seen[place]), second)
                    side.last_seen[place] = max(int(side.last_seen[place]), second)
                    side.values[place, 0] += np.float32(1 + int(row_id & np.uint64(3)))
        return scores


@dataclass
class Plan:
    """What the seed decided about this world."""

    seed: int
    partitions: int = 1
    buckets: int = 4
    learners: int = 1
    keepers: int = 1
    batches: int = 30
    reverts: float = 0.0
    weather: Weather = field(default_factory=Weather)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Draw a plan; each kind of fault is absent in some worlds, frequent in others."""
        dice = random.Random(seed)

        def some(limit: float) -> float:
            return dice.choice([0.0, limit / 5, limit])

        return cls(
            seed,
            partitions=dice.randint(1, 3),
            buckets=dice.choice([1, 2, 4, 8]),
            learners=dice.randint(1, 3),
            keepers=dice.randint(0, 2),
            batches=dice.randint(5, 40),
            reverts=some(0.05),
            weather=Weather(
                lost_request=some(0.1),
                lost_reply=some(0.2),
                stale_poll=some(0.1),
                crash=some(0.01),
                lingering_push=some(0.2),
            ),
        )


class World:
    """One run of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.dice = random.Random(plan.seed ^ 0x5EED)
        self.clock_ms = _T0_MS
        self.fields = parse_fields(tomllib.loads(_SPEC), SpecText(Path("simulation.toml"), _SPEC))
        self.topic = SimulatedTopic(plan.partitions)
        self.store = MemoryStore(clock_ms=self.now_ms, nonces=self.nonce)
        self.shape = Shape("simulated", plan.buckets, 1, "fingerprint", _SPEC)
        self.store.create(self.shape)
        self.weather = plan.weather
        self.group = Group(self.topic, self.dice)
        self.learners: dict[str, Learner | None] = {}
        self.keepers: dict[str, Keeper | None] = {}
        self.lingering: list[Push] = []
        self.truth: dict[int, list[int]] = {}  # id -> shows, clicks, first, last, value
        self.checkpoints: list[tuple[int, BucketState]] = []
        self.produced = 0

    def now_ms(self) -> int:
        return self.clock_ms

    def nonce(self) -> bytes:
        return self.dice.randbytes(8)

    # ---------------------------------------------------------------- processes

    def start_learner(self, name: str) -> None:
        """Bring a learner up; it may die while it copies its replica."""
        store = FaultyStore(self.store, self.weather, self.dice)
        try:
            replica = Replica(store, self.shape)
            for _ in range(200):
                replica.poll()
                if replica.complete:
                    break
            else:
                raise Broken(f"learner {name}: the replica does not become complete")
        except (Crash, Unreachable):
            self.learners[name] = None
            return
        exchange = SimulatedExchange(store, self.weather, self.dice, self.lingering)
        self.learners[name] = Learner(
            reader=self.group.join(name),
            scores=ListWriter(),
            score_topic="scores",
            store=store,
            exchange=exchange,
            replica=replica,
            model=CountingModel(),
            fields=self.fields,
            pace=Pace(push_interval_ms=self.dice.choice([0, 20]), order_wait_ms=20),
            now_ms=self.now_ms,
            draw_nonce=self.nonce,
            rest=lambda seconds: None,
        )

    def run_learner(self, name: str) -> None:
        learner = self.learners.get(name)
        if learner is None:
            self.start_learner(name)
            return
        try:
            learner.step(0.0)
        except Crash:
            self.group.leave(name)
            self.learners[name] = None

    def run_keeper(self, name: str) -> None:
        try:
            keeper = self.keepers.get(name)
            if keeper is None:
                store = FaultyStore(self.store, self.weather, self.dice)
                keeper = self.make_keeper(name, store)
                self.keepers[name] = keeper
            keeper.step()
        except (Crash, Unreachable):
            self.keepers[name] = None

    def make_keeper(self, name: str, store: FaultyStore) -> Keeper:
        """A keeper that folds early, so that much is folded and trimmed within a run."""
        keeping = Keeping(keep_ms=300, keep_bytes=4000, rows_a_fold=4, lease_ms=400)
        return Keeper(
            store,
            self.shape,
            name=name,
            keeping=keeping,
            now_ms=self.now_ms,
            draw_nonce=self.nonce,
        )

    # ---------------------------------------------------------------- events and faults

    def produce(self) -> None:
        """Append one batch of examples; remember what its rows must gain."""
        count = self.dice.randint(1, 4)
        pairs = [(self.dice.randint(0, 5), self.dice.randint(0, 5)) for _ in range(count)]
        ids = np.array([self._ids(user, item) for user, item in pairs], np.uint64)
        kinds = np.array([self.dice.choice([0, 0, 1]) for _ in range(count)], np.uint8)
        event_ms = np.array(
            [self.clock_ms - self.dice.randint(0, 9000) for _ in range(count)], np.int64
        )
        source = self.dice.choice(list(self.topic.records))
        names = [f"{self.produced}-{i}" for i in range(count)]
        examples = Examples(
            self.fields.fingerprint,
            self.clock_ms,
            kinds,
            (kinds == Kind.CLICKED).astype(np.uint8),
            event_ms,
            event_ms,
            np.full(count, self.clock_ms, np.int64),
            pa.array(names, pa.string()),
            pa.array([None] * count, pa.string()),
            Encoded(
                ids,
                np.zeros(0, np.uint64),
                np.zeros(1, np.int32),
                np.zeros((count, 0), np.float32),
            ),
            {},
        )
        self.produced += 1
        self.topic.append(source, pack(examples), self.clock_ms, self.dice.random() < 0.3)
        for i in range(count):
            for row_id in ids[i]:
                row = self.truth.setdefault(int(row_id), [0, 0, NEVER, 0, 0])
                row[int(kinds[i])] += 1
                row[2] = min(row[2], int(event_ms[i]) // 1000)
                row[3] = max(row[3], int(event_ms[i]) // 1000)
                row[4] += 1 + int(row_id & np.uint64(3))

    def _ids(self, user: int, item: int) -> list[int]:
        spread = random.Random(f"{user}/{item}")
        return [
            (random.Random(f"u{user}").getrandbits(54) << 10) | 1,
            (random.Random(f"i{item}").getrandbits(54) << 10) | 2,
            (spread.getrandbits(54) << 10) | 3,
        ]

    def revert(self) -> None:
        """A failover: a bucket goes back to what a lagging follower had."""
        if self.checkpoints and self.dice.random() < 0.5:
            bucket, checkpoint = self.checkpoints.pop(self.dice.randrange(len(self.checkpoints)))
            self.store.revert(bucket, checkpoint)
            # what was remembered of this bucket later belongs to a history that is no more
            self.checkpoints = [c for c in self.checkpoints if c[0] != bucket]
        else:
            bucket = self.dice.randrange(self.plan.buckets)
            self.checkpoints.append((bucket, self.store.checkpoint(bucket)))

    def arrive_late(self) -> None:
        """A push that lingered in the network arrives now."""
        push = self.lingering.pop(self.dice.randrange(len(self.lingering)))
        self.store.push([push])

    # ---------------------------------------------------------------- the run

    def storm(self) -> None:
        """Everything at once, as the dice say, until all batches are produced and then some."""
        names = [f"learner-{i}" for i in range(self.plan.learners)]
        keepers = [f"keeper-{i}" for i in range(self.plan.keepers)]
        for name in names:
            self.learners[name] = None
        for _ in range(self.plan.batches * 8):
            self.clock_ms += self.dice.choice([0, 1, 5, 30, 200])
            roll = self.dice.random()
            if roll < 0.2 and self.produced < self.plan.batches:
                self.produce()
            elif roll < 0.23 and any(self.learners.values()):
                self.group.rebalance()
            elif roll < 0.23 + self.plan.reverts:
                self.revert()
            elif roll < 0.35 and self.lingering:
                self.arrive_late()
            elif roll < 0.55 and keepers:
                self.run_keeper(self.dice.choice(keepers))
            else:
                self.run_learner(self.dice.choice(names))
        while self.produced < self.plan.batches:
            self.produce()

    def calm(self) -> None:
        """No more faults: everybody works until all is learned. Nobody may wait for ever."""
        self.weather.lost_request = self.weather.lost_reply = self.weather.stale_poll = 0.0
        self.weather.crash = self.weather.lingering_push = 0.0
        ends = {f"simulated/{s.partition}": end for s, end in self.topic.ends.items()}
        for _ in range(3000):
            self.clock_ms += 25
            for name in self.learners:
                self.run_learner(name)
            for name in self.keepers:
                self.run_keeper(name)
            answers = self.store.marks(range(self.plan.buckets))
            if all(
                not isinstance(answer, Unreachable)
                and all(answer.marks.get(name, 0) == end for name, end in ends.items())
                for answer in answers
            ):
                return
        raise Broken(f"not everything is learned: {answers}, ends {ends}")

    def verify(self) -> None:
        """Rows are the truth to the unit, and all replicas the same bit for bit."""
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        table, columns = replica.table, replica.table.columns
        found = {}
        for place, row_id in enumerate(table.ids.tolist()):
            row = [
                int(columns.shows[place]),
                int(columns.clicks[place]),
                int(columns.first_seen[place]),
                int(columns.last_seen[place]),
                int(columns.values[place, 0]),
            ]
            if row != [0, 0, NEVER, 0, 0]:
                found[row_id] = row
        if found != self.truth:
            wrong = {i for i in found.keys() | self.truth if found.get(i) != self.truth.get(i)}
            shown = {i: (found.get(i), self.truth.get(i)) for i in sorted(wrong)[:3]}
            raise Broken(f"{len(wrong)} rows are not the truth (found, true): {shown}")
        for name, learner in self.learners.items():
            if learner is not None:
                self.settle(name, learner)
        self.compare(replica)

    def settle(self, name: str, learner: Learner) -> None:
        """A learner at rest sees exactly what the store holds."""
        for _ in range(100):
            self.clock_ms += 250
            learner.step(0.0)
        view = learner.view
        for row_id, row in self.truth.items():
            [place] = view.find(np.array([row_id], np.uint64))
            columns = view.columns
            seen = [int(columns.shows[place]), int(columns.clicks[place])] if place >= 0 else None
            if seen != row[:2]:
                raise Broken(f"{name} sees {seen} in row {row_id}, the truth is {row[:2]}")

    def compare(self, fresh: Replica) -> None:
        """Replicas that followed through the storm equal one copied just now, bit for bit."""
        for name, learner in self.learners.items():
            if learner is None:
                continue
            for bucket in range(self.plan.buckets):
                if learner.replica.checksum(bucket) != fresh.checksum(bucket):
                    raise Broken(f"replica of {name} differs from a fresh one in bucket {bucket}")


def run(seed: int) -> None:
    """Run one seed; raises Broken with the seed's plan if a promise does not hold."""
    plan = Plan.draw(seed)
    world = World(plan)
    shown = repr(plan)
    try:
        world.storm()
        world.calm()
        world.verify()
    except Exception as error:
        raise Broken(f"seed {seed}: {type(error).__name__}: {error}\n{shown}") from error
