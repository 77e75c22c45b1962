"""The world: topics, a store, joiners, learners, keepers and servers, and the faults of a seed.

In a world with joiners, `pipeline` makes the examples from events. In other worlds batches of
examples are appended to their topic. `failovers` has the faults of buckets.

Most worlds start without faults. Then comes the storm, a sequence of random deeds. While a process
pauses within a call, other deeds run, so anything can happen between any two calls. In the calm
that follows, faults stop, and all processes work until everything is learned, folded and trimmed.
Delayed requests arrive then and must change nothing. `rest` checks that state; `witness` and
`processes` check every step.
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from headrace.ingest.kafka.protocols import Source
from headrace.learner.loop.marks.parked_marks import parked_messages
from headrace.pserver.store import Shape
from tests.simulation.batches import POISONS, SPEC, WIDTH, draw_batch
from tests.simulation.bounded import projected
from tests.simulation.failovers import Failovers
from tests.simulation.kafka import Group
from tests.simulation.kinds import draw_plan
from tests.simulation.learner_process import LearnerProcess
from tests.simulation.ledger import Broken
from tests.simulation.network import Crash, Network
from tests.simulation.parking import Operator
from tests.simulation.pipeline import Pipeline
from tests.simulation.plan import CALM, Plan
from tests.simulation.processes import KeeperProcess, Process, Refused, ServerProcess
from tests.simulation.producer_client import simulated_client
from tests.simulation.rest import unkept, unlearned, verify
from tests.simulation.topic import SimulatedTopic
from tests.simulation.witness import WitnessedStore

_T0_MS = 1_700_000_000_000
_HOUR_MS = 3_600_000
_MOST_CALLS = 20_000
"""More than all that happens inside one deed, however many others happen inside that."""
_REST_ROUNDS = 200
"""More than any world needs to come to rest."""
_ROUNDS_OUTLASTED = 2
"""Most rounds of all others while a process pauses: enough to push, fold and trim."""
_CATCHING_UP = 3
"""Rounds in which almost everybody comes to where the logs end."""


class World:
    """One run of one plan."""

    def __init__(self, plan: Plan, journal: deque[str] | None = None) -> None:
        """`journal` gets every deed and fault as text."""
        self.plan, self.weather = plan, plan.weather
        self.dice = random.Random(plan.seed ^ 0x5EED)
        self.tally: Counter[str] = Journal(journal, self) if journal is not None else Counter()
        self.clock_ms = _T0_MS
        self.store_ahead_ms = self._wall_ahead_ms = 0
        self.topic = SimulatedTopic(plan.partitions)
        self.group = Group(self.topic, self.dice, self.tally)
        self.network = Network(self.dice, self.tally, slow=plan.slow_links)
        self.shape = Shape("simulated", plan.buckets, WIDTH, "fingerprint", SPEC)
        self.store = WitnessedStore(
            clock_ms=lambda: self.clock_ms + self.store_ahead_ms,
            nonces=self.nonce,
            topic=self.topic,
            tally=self.tally,
            projected=partial(projected, plan=plan),
        )
        self.store.create(self.shape)
        if plan.row_limit:
            self.store.limit_rows(plan.row_limit)
        self.learners = [LearnerProcess(f"learner {i}", self) for i in range(plan.learners)]
        self.store.accepting = lambda: any(learner.accepting for learner in self.learners)
        self.keepers = [KeeperProcess(f"keeper {i}", self) for i in range(plan.keepers)]
        self.servers = [ServerProcess(f"server {i}", self) for i in range(plan.servers)]
        self.pipeline = Pipeline(self) if plan.joiners else None
        self._failovers = Failovers(self)
        self._done = self._produced = self._stormed = self._depth = self._calls = 0
        self._deeds = self._weighted_deeds()

    @property
    def followers(self) -> list[Process]:
        """The processes that have a replica."""
        return [*self.learners, *self.keepers, *self.servers]

    @property
    def processes(self) -> list[Process]:
        """All of them."""
        return [*self._joiners(), *self.followers]

    def _joiners(self) -> Sequence[Process]:
        return self.pipeline.joiners if self.pipeline else ()

    # ---------------------------------------------------------------- what surrounds a process

    def now_ms(self) -> int:
        """Time since the world began."""
        return self.clock_ms - _T0_MS

    def wall_ms(self) -> int:
        """The time of day, as the machine of a process has it; it steps."""
        return self.clock_ms + self._wall_ahead_ms

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.clock_ms += milliseconds

    def nonce(self) -> bytes:
        """Eight random bytes."""
        return self.dice.randbytes(8)

    def pause(self) -> None:
        """The calling process may die here, or pause while others go on."""
        self._calls += 1
        if self._calls > _MOST_CALLS:
            raise Broken("a process calls without end")
        weather = self.weather
        if weather.crash and self.dice.random() < weather.crash:
            raise Crash
        if weather.stall and self.dice.random() < weather.stall:
            self.stand_still()

    def stand_still(self) -> None:
        """The calling process pauses here, while others go on."""
        if self._depth == self.plan.deepest or self._done >= self.plan.deeds:
            return
        self._depth += 1
        lease_ms = self.plan.lease_ms
        stall_ms = self.dice.choice((1, 300, lease_ms + 1, 2 * lease_ms))
        self.tally["stalls"] += 1
        self.tally["stalls longer than a lease"] += stall_ms > lease_ms
        if self.plan.reverts and self.dice.random() < self.plan.failing_over:
            self._failovers.go_back()  # hence no answer
        deeds = self.dice.randint(1, max(1, self.plan.stall_deeds >> 2 * (self._depth - 1)))
        for _ in range(deeds):
            self.clock_ms += stall_ms // deeds
            self._do_something()
        self._depth -= 1

    def outlast(self) -> None:
        """The calling process pauses here until all others have made progress."""
        if self._depth == self.plan.deepest or self._done >= self.plan.deeds:
            return
        self._depth += 1
        self.tally["stalls outlasted"] += 1
        if self.plan.reverts and self.dice.random() < self.plan.failing_over:
            self._failovers.go_back()
        for _ in range(self.dice.randint(1, _ROUNDS_OUTLASTED)):
            self.clock_ms += 100
            self._produce()
            for process in self.processes:
                if not process.running:
                    self._done += 1
                    process.run()
        self._depth -= 1

    # ---------------------------------------------------------------- the storm

    def warm_up(self) -> None:
        """Let everybody work for a while, so that there are rows, and logs that were trimmed."""
        self.weather = CALM
        for _ in range(self.plan.warm_batches):
            for _ in range(2):
                self._append(self.dice.choice(self.topic.sources))
            for _ in range(3):
                self.clock_ms += 60
                for process in self.processes:
                    process.run()
        self.weather = self.plan.weather

    def storm(self) -> None:
        """Everything at once, as the dice say."""
        while self._done < self.plan.deeds:
            self.clock_ms += self.dice.choice((0, 1, 5, 30, 200))
            self._do_something()
        while self._stormed < self.plan.batches:
            self._produce()

    def _weighted_deeds(self) -> tuple[list[Callable[[], None]], list[float]]:
        plan = self.plan
        deeds: dict[Callable[[], None], float] = {
            self._produce: 100.0 * plan.batches / plan.deeds * 1.5,
            partial(self._run, self.learners): plan.learner_steps,
            partial(self._run, self.keepers): plan.keeper_steps * plan.keepers,
            partial(self._run, self.servers): 7.0 * plan.servers,
            self._rebalance: plan.rebalances,
            self._failovers.go_back: plan.reverts,
            self._failovers.lose: plan.losses,
            self._failovers.restore: 5 * plan.losses,
            self._step_a_clock: plan.clock_jumps,
            self._make_topic_again: plan.recreations,
            self._delete_old_records: 0.0 if plan.losses else plan.retention,
            self._restart: plan.restarts,
            self.network.arrive: 15.0 if plan.weather.linger else 0.0,
            **self._deeds_of_pipeline(),
            self._cut_a_log: plan.log_cuts,
            Operator(self).ask: plan.operators,
            self._failovers.fall_silent: plan.silences,
            self._failovers.come_back: plan.silences / 4,
        }
        return list(deeds), list(deeds.values())

    def _deeds_of_pipeline(self) -> dict[Callable[[], None], float]:
        if (pipeline := self.pipeline) is None:
            return {}
        return {
            pipeline.arrive: 2.0,
            partial(self._run, pipeline.joiners): self.plan.joiner_steps,
            pipeline.forget_offsets: self.plan.forgotten,
            pipeline.cut_a_log: self.plan.event_cuts,
            pipeline.producer.move_a_log: self.plan.broker_clocks,
        }

    def _do_something(self) -> None:
        self._done += 1
        if not self._depth:
            self._calls = 0
        deeds, weights = self._deeds
        [deed] = self.dice.choices(deeds, weights)
        deed()

    def _produce(self) -> None:
        if self._stormed < self.plan.batches:
            self._stormed += 1
            self._append(self.dice.choice(self.topic.sources))

    def _append(self, source: Source) -> None:
        if self.pipeline is not None:
            self.pipeline.producer.send(source.partition, self.wall_ms())
            return
        dice, plan = self.dice, self.plan
        poison = dice.choice(POISONS) if plan.poisoned and dice.random() < plan.poisoned else ""
        aborted = dice.randint(1, 3) if plan.gaps and dice.random() < plan.gaps else 0
        self.tally["batches to quarantine"] += bool(poison)
        self.tally["aborted transactions"] += bool(aborted)
        batch = draw_batch(str(self._produced), self.wall_ms(), plan.values, dice, poison)
        self._produced += 1
        marker = dice.random() < 0.3
        self.topic.append(source, batch, self.wall_ms(), aborted=aborted, marker=marker)

    def _run(self, processes: Sequence[Process]) -> None:
        free = [process for process in processes if not process.running]
        if free:
            self.dice.choice(free).run()

    def _rebalance(self) -> None:
        groups = [self.group, self.pipeline.group] if self.pipeline else [self.group]
        self.dice.choice(groups).rebalance(self.plan.zombie_polls)

    def _step_a_clock(self) -> None:
        step_ms = self.dice.choice((10, self.plan.lease_ms, 5 * self.plan.lease_ms))
        if self.dice.random() < 0.5:
            self.tally["steps of a machine's clock"] += 1
            self._wall_ahead_ms += self.dice.choice((-_HOUR_MS, -step_ms, step_ms))
        elif self.store_ahead_ms > 0 and self.dice.random() < 0.4:
            self.tally["steps back of the store's clock"] += 1
            self.store_ahead_ms -= min(self.store_ahead_ms, step_ms)
        else:
            self.tally["steps of the store's clock"] += 1
            self.store_ahead_ms += step_ms

    def _make_topic_again(self) -> None:
        self.tally["topics made again"] += 1
        self.topic.make_again()

    def _delete_old_records(self) -> None:
        """Delete what all buckets have learned, also after any failover or restore."""
        present = [self.store.state(bucket) for bucket in range(self.plan.buckets)]
        past = [m.state for memories in self._failovers.memories.values() for m in memories]
        for name, source in self.topic.now.names.items():
            marks = [state.marks for state in [*present, *past]]
            learned = min(own.get(name, 0) for own in marks)
            if self.dice.random() < 0.7:
                parked = [each.offset for each in parked_messages(marks) if each.source == name]
                learned = min([learned, *parked])
            self.tally["records deleted by Kafka"] += learned > self.topic.now.firsts[source]
            self.topic.delete_before(source, learned)

    def _cut_a_log(self) -> None:
        """Let a log lose its end with the power of all learners, and grow beyond it again."""
        source = self.dice.choice(self.topic.sources)
        records = len(self.topic.now.records[source])
        if not records or any(process.running for process in self.processes):
            return
        for learner in self.learners:
            learner.kill()
        end = self.topic.cut(source, self.dice.randint(1, min(3, records)))
        name = next(name for name, each in self.topic.now.names.items() if each == source)
        marks = [self.store.state(bucket).marks for bucket in range(self.plan.buckets)]
        beyond = any(own.get(name, 0) > self.topic.now.ends[source] for own in marks)
        self.tally["logs cut that were learned" if beyond else "logs cut"] += 1
        self.topic.cut_beyond_marks |= beyond
        while self.topic.now.ends[source] <= end:
            self._append(source)

    def _restart(self) -> None:
        free = [process for process in self.processes if process.up and not process.running]
        if free:
            self.tally["processes ended in good order"] += 1
            self.dice.choice(free).end()

    # ---------------------------------------------------------------- the calm

    def calm(self) -> None:
        """Run all processes without faults until no work is left. No process may wait forever."""
        self.weather = CALM
        self._failovers.come_back()
        self._failovers.restore()
        if self.plan.last_failover:
            self._fail_over_unseen()
        self._rest(lambda: unlearned(self))
        while self.network.late:
            self.network.arrive()
        while self.pipeline is not None and self.pipeline.broker.late:
            self.pipeline.broker.arrive()
        # a keeper learns from the next entry that its bucket lost what it had trimmed
        for source in self.topic.sources:
            self._append(source)
        self._rest(lambda: unlearned(self) or unkept(self))

    def _fail_over_unseen(self) -> None:
        """Fail over; servers, cut off, do not hear of it before learners made good what is lost."""
        for _ in range(_CATCHING_UP):
            self.clock_ms += 100
            for process in self.processes:
                process.run()
        self._failovers.go_back()
        self._rest(lambda: unlearned(self, self.learners), [*self.learners, *self.keepers])

    def _rest(self, unrest: Callable[[], str], working: Sequence[Process] | None = None) -> None:
        reason = ""
        for count in range(_REST_ROUNDS):
            # a joiner waits as long as its events are apart, and a broker's clock is ahead
            self.clock_ms += 100 if count < _REST_ROUNDS // 2 else 10_000
            self._calls = 0
            if self.pipeline is not None:
                self.pipeline.broker.end_overdue()
            for process in self.processes if working is None else working:
                process.run()
            reason = unrest()
            if not reason:
                return
        raise Broken(f"no rest after {_REST_ROUNDS} rounds: {reason}")


class Journal(Counter[str]):
    """A tally that also writes down what it counts."""

    def __init__(self, lines: deque[str], world: World) -> None:
        super().__init__()
        self._lines, self._world = lines, world

    def __setitem__(self, what: str, count: int) -> None:
        if count > self[what]:
            self._lines.append(f"{self._world.clock_ms - _T0_MS:>7} ms  {what}")
        super().__setitem__(what, count)


def run(seed: int, journal: deque[str] | None = None, about: str | None = None) -> Counter[str]:
    """Run one seed; return how often what happened. Raises Broken, with the seed's plan.

    about: the kind of world, of `kinds.KINDS`; None: as the seed says.
    """
    plan = draw_plan(seed, about)
    world = World(plan, journal)
    pipeline = world.pipeline
    try:
        with simulated_client(pipeline.broker, world) if pipeline else nullcontext():
            world.warm_up()
            world.storm()
            world.calm()
        verify(world)
    except Refused:
        world.tally["worlds that end at a cut log"] += 1
    except Exception as error:
        kind = "" if isinstance(error, Broken) else f"{type(error).__name__}: "
        asked = f" about {about!r}" if about else ""
        raise Broken(f"seed {seed}{asked}: {kind}{error}\n{plan}") from error
    return world.tally
