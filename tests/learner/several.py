"""Several learners of one model in one process, taking turns: what staleness costs, reproducibly.

Each learner is the real loop with partitions of its own; the store is in memory. In a turn every
learner takes one step, of one batch at most, and time passes. Answers to pushes take as long as
they are told to. So what a learner had not heard of when it scored an example depends on the
settings alone, and a figure is the same wherever it is measured.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest.examples.batch import pack
from headrace.ingest.kafka.fakes import ListReader, ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.models.factory import open_model
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import BucketAnswer, Push, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.ingest.examples.batch import Examples
    from headrace.learner.loop.example_queue import ExampleBatch
    from headrace.learner.loop.pacing import PushInterval
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.pserver.errors import Unreachable
    from headrace.pserver.rows.row_codec import FoldedRows

_MOST_TURNS = 200_000


class SlowExchange:
    """Answers after a while, by the clock of the turns."""

    def __init__(self, world: Turns) -> None:
        self._world = world
        self._answers: list[BucketAnswer | Unreachable] | None = None
        self._at_ms = 0

    def send(self, pushes: Sequence[Push]) -> None:
        self._answers = self._world.store.push(pushes)
        self._at_ms = self._world.now_ms + self._world.answer_ms

    def receive(self) -> list[BucketAnswer | Unreachable] | None:
        if self._world.now_ms < self._at_ms:
            return None
        answers, self._answers = self._answers, None
        return answers


class Turns:
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
    ) -> None:
        self.now_ms, self.answer_ms, self._turn_ms = 0, answer_ms, turn_ms
        self.spec, dice = spec, random.Random(5)
        self.store = MemoryStore(clock_ms=lambda: self.now_ms, nonces=lambda: dice.randbytes(8))
        self.shape = Shape(spec.name, buckets, spec.width, spec.fingerprint, "")
        self.store.create(self.shape)
        self._draw_nonce = lambda: dice.randbytes(8)
        sources = [Source(f"examples.{spec.name}", each) for each in range(partitions)]
        records: dict[Source, list[Record]] = {each: [] for each in sources}
        for number, batch in enumerate(batches):
            target = records[sources[number % partitions]]
            target.append(Record(sources[number % partitions], len(target), 1, pack(batch)))
        self._ends = {each.partition: len(found) for each, found in records.items()}
        self.written = ListWriter()
        self.learners = [
            self._learner(
                {s: records[s] for s in sources[number::learners]},
                LearnerPacing(staleness=staleness),
            )
            for number in range(learners)
        ]
        self._keeper = Keeper(
            self.store,
            self.shape,
            name="keeper",
            keeping=FoldPolicy(keep_ms=500, keep_bytes=100_000, lease_ms=10_000),
            now_ms=lambda: self.now_ms,
            draw_nonce=self._draw_nonce,
        )

    def _learner(self, records: dict[Source, list[Record]], pace: LearnerPacing) -> Learner:
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        learner = Learner(
            reader=ListReader(records, largest_poll=1000),
            scores=self.written,
            score_topic=f"scores.{self.spec.name}",
            store=self.store,
            exchange=SlowExchange(self),
            replica=replica,
            model=open_model(self.spec, self.shape.buckets),
            fields=self.spec.fields,
            pace=pace,
            now_ms=lambda: self.now_ms,
            draw_nonce=self._draw_nonce,
            rest=lambda seconds: None,
        )
        # read far ahead, so that batches go in the order of event time whatever is waited for
        take, taken_ms = learner._intake.next, [-1]

        def one_a_turn() -> ExampleBatch | None:
            if taken_ms[0] == self.now_ms:
                return None
            batch = take()
            if batch is not None:
                taken_ms[0] = self.now_ms
            return batch

        setattr(learner._intake, "next", one_a_turn)  # noqa: B010 (mypy: a method)
        return learner

    def run(self) -> None:
        """Take turns until all is learned and every learner has heard of it."""
        for turn in range(_MOST_TURNS):
            self.now_ms += self._turn_ms
            for learner in self.learners:
                learner.step(0.0)
            if turn % 50 == 0:
                self._keeper.step()
                if self.learned():
                    return
        raise AssertionError(f"not learned in {_MOST_TURNS} turns: {self.marks()}")

    def marks(self) -> list[dict[int, int]]:
        """Of each bucket, how far it has learned each partition."""
        answers = self.store.marks(range(self.shape.buckets))
        return [
            {int(name.rpartition("/")[2]): mark for name, mark in answer.marks.items()}
            for answer in answers
            if isinstance(answer, BucketAnswer)
        ]

    def learned(self) -> bool:
        """Whether every bucket has all examples."""
        return all(marks == self._ends for marks in self.marks())

    def rows(self) -> FoldedRows:
        """All rows, as anybody reads them."""
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        return replica.table.everything().existing()

    def scores(self) -> dict[str, float]:
        """The first score of every impression."""
        found: dict[str, float] = {}
        for sent in self.written.sent:
            scores = unpack_scores(sent.value)
            for name, score in zip(
                scores.impression_ids.to_pylist(), np.asarray(scores.scores).tolist(), strict=True
            ):
                found.setdefault(name, score)
        return found
