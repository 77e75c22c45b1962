"""A model with learners of few rows or of all rows, and a store that does not always answer."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.ingest.examples.batch import Examples
from headrace.learner.loop.exchange import Exchange
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.models.factory import open_model
from headrace.learner.models.sync_group import SyncGroup
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer, LookResult, Push
from tests.learner.in_memory import InMemoryModel, cut, records_of
from tests.learner.streams import BUCKETS, random_examples, random_spec

_TURNS = 120
"""With trouble."""


class Silent:
    """A store whose buckets do not always answer lookups of rows, or pushes.

    An unanswered push may have arrived.
    """

    def __init__(self, store: MemoryStore, dice: random.Random) -> None:
        self._store, self._dice = store, dice
        self.share = self.push_share = 0.0

    def look(self, wanted: Any, after: Any, limit: int) -> list[LookResult | Unreachable]:
        answers = self._store.look(wanted, after, limit)
        silent = [self._dice.random() < self.share for _ in answers]
        return [Unreachable("no answer") if s else a for s, a in zip(silent, answers, strict=True)]

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        answers: list[BucketAnswer | Unreachable] = []
        for push in pushes:
            if self._dice.random() >= self.push_share:
                answers += self._store.push([push])
                continue
            if self._dice.random() < 0.5:
                self._store.push([push])
            answers.append(Unreachable("no answer"))
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Model(InMemoryModel):
    """A model in memory, its examples in one topic, and a keeper."""

    def __init__(
        self, spec: ModelSpec, examples: Examples, batch: int = 40, expiry: Expiry | None = None
    ) -> None:
        super().__init__(spec)
        self.batches, self.dice = cut(examples, batch), random.Random(5)
        self.records = records_of(self.batches)
        self.expiry = expiry or Expiry()
        self.keeper_at_work = self.new_keeper()

    def new_keeper(self) -> Keeper:
        policy = FoldPolicy(keep_ms=100, keep_bytes=4000, lease_ms=50, expiry=self.expiry)
        return self.keeper(policy)

    def learning(
        self,
        most_rows: int | None,
        store: Any = None,
        partition: int = 0,
        exchange: Exchange | None = None,
        group: SyncGroup | None = None,
    ) -> Learner:
        """A learner of all examples, as if they were in this partition."""
        model = open_model(self.spec, BUCKETS)
        return self.learner(
            records_of(self.batches, partition),
            LearnerPacing(push_interval_ms=30, retry_interval_ms=5),
            model=model,
            replica=None if most_rows is None else self.few_rows(model, most_rows, store),
            store=store,
            exchange=exchange,
            group=group,
            largest_poll=1,
        )

    def run(self, learner: Learner, over: Callable[[], bool] = lambda: True) -> None:
        """Take turns until everything is learned and `over` returns True."""
        for _ in range(100 * len(self.records)):
            self.now_ms += 20
            learner.step(0.0)
            self.keeper_at_work.step()
            if over() and self.all_learned():
                return
        raise AssertionError(f"not learned: {self.store.marks(range(BUCKETS))}")

    def all_learned(self) -> bool:
        return all(set(each.values()) == {len(self.records)} for each in self.marks())


class Trouble:
    """The faults of a learner: buckets that go back or do not answer, and another learner."""

    def __init__(
        self, dice: random.Random, drawn: tuple[ModelSpec, Examples], most_rows: int | None
    ) -> None:
        self.dice = dice
        self.model = Model(*drawn, batch=8)
        self.store = Silent(self.model.store, dice)
        self.remembered: dict[int, Any] = {}
        self.learner = self.model.learning(most_rows, self.store)
        self.other = self.model.learning(None)
        self.turns = 0

    def happen(self) -> bool:
        """Let something happen; return whether that is over."""
        self.turns += 1
        self.store.share = self.store.push_share = 0.0
        if self.turns > _TURNS:
            return True
        self.store.share = self.dice.choice([0.0, 0.0, 0.1, 1.0])
        self.store.push_share = self.dice.choice([0.0, 0.3])
        bucket, store = self.dice.randrange(BUCKETS), self.model.store
        kind = self.dice.random()
        if kind < 0.3:
            self.remembered[bucket] = store.checkpoint(bucket)
        elif kind < 0.4 and bucket in self.remembered:
            store.revert(bucket, self.remembered[bucket])
            self.model.keeper_at_work = self.model.new_keeper()
        elif kind < 0.6:
            self.other.step(0.0)
        return False

    def run(self) -> None:
        """Learn everything in trouble."""
        self.model.run(self.learner, over=self.happen)
        assert self.learner.tally.reread > 0, "nothing happened"


def assert_same(found: FoldedRows, expected: FoldedRows) -> None:
    for name, column in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)


def drawn(seed: int, growth: str = "", model: str = "") -> tuple[ModelSpec, Examples]:
    random = np.random.default_rng(seed)
    policy = ["immediate", "window"][seed % 2]
    spec = random_spec(random, policy, statistics=seed % 4 < 2, growth=growth, model=model)
    return spec, random_examples(random, spec, 500, closed=policy == "window")
