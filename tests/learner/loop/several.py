"""Several learners of one model in one process, taking turns: the cost of staleness, reproducibly.

Each learner is the real loop with partitions of its own; the store is in memory. In a turn every
learner takes one step, of one batch at most, and time passes. Answers to pushes take `answer_ms`.
So the pushes that a learner had not folded when it scored an example depend on the settings alone,
and a figure is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.ingest.examples.batch import Examples
from headrace.ingest.kafka.protocols import Record
from headrace.learner.loop.exchange import DirectExchange
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.merging import ExampleBatch
from headrace.learner.loop.pacing import LearnerPacing, PushInterval
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.store import BucketAnswer, Push
from tests.learner.in_memory import InMemoryModel, records_of

_MOST_TURNS = 200_000


class Sent(NamedTuple):
    """A round of pushes: when it left, and how many examples its learner had learned by then."""

    at_ms: int
    examples: int


class SlowExchange(DirectExchange):
    """Pushes at once, answers after a while by the clock of the turns, and notes its rounds."""

    learner: Learner

    def __init__(self, world: Turns) -> None:
        super().__init__(world.store)
        self._world, self._at_ms = world, 0
        self.rounds: list[Sent] = []

    def send(self, pushes: Sequence[Push]) -> None:
        self.rounds.append(Sent(self._world.now_ms, self.learner.figures.examples))
        super().send(pushes)
        self._at_ms = self._world.now_ms + self._world.answer_ms

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        return None if self._world.now_ms < self._at_ms else super().receive()


class Turns(InMemoryModel):
    """A model in memory, its learners, and batches dealt out to partitions in turn."""

    def __init__(
        self,
        spec: ModelSpec,
        batches: Sequence[Examples],
        learners: int,
        staleness: PushInterval,
        *,
        partitions: int = 4,
        buckets: int = 16,
        answer_ms: int = 4,
        turn_ms: int = 2,
        others_ms: int = LearnerPacing().others_ms,
    ) -> None:
        super().__init__(spec, buckets)
        self.answer_ms, self._turn_ms = answer_ms, turn_ms
        records = [records_of(batches[k::partitions], k) for k in range(partitions)]
        self._ends = {k: len(found) for k, found in enumerate(records)}
        pace = LearnerPacing(staleness=staleness, window_examples=1, others_ms=others_ms)
        self.exchanges = [SlowExchange(self) for _ in range(learners)]
        self.learners = [
            self._learner(records[number::learners], pace, exchange)
            for number, exchange in enumerate(self.exchanges)
        ]
        self._keeper = self.keeper(FoldPolicy(keep_ms=500, keep_bytes=100_000, lease_ms=10_000))

    def _learner(
        self, partitions: Sequence[list[Record]], pace: LearnerPacing, exchange: SlowExchange
    ) -> Learner:
        learner = self.learner(
            [record for records in partitions for record in records],
            pace,
            exchange=exchange,
            largest_poll=1000,
        )
        exchange.learner = learner
        # read far ahead, so that batches keep the order of event time during every wait
        take, taken_ms = learner.intake.next_window, [-1]

        def one_a_turn(most: int) -> list[ExampleBatch]:
            if taken_ms[0] == self.now_ms:
                return []
            window = take(most)
            if window:
                taken_ms[0] = self.now_ms
            return window

        setattr(learner.intake, "next_window", one_a_turn)  # noqa: B010 (mypy: a method)
        return learner

    def run(self) -> None:
        """Take turns until every bucket has learned every batch."""
        for turn in range(_MOST_TURNS):
            self.now_ms += self._turn_ms
            for learner in self.learners:
                learner.step(0.0)
            if turn % 50 == 0:
                self._keeper.step()
                if self.learned(self._ends):
                    return
        raise AssertionError(f"not learned in {_MOST_TURNS} turns: {self.marks()}")
