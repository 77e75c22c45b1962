"""A learner that holds few rows learns what one that holds all of them does, bit for bit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ingest.examples import pack
from ingest.fakes import ListReader, ListWriter
from ingest.stream import Record, Source
from learner.hot_rows import HotRows
from learner.loop import Learner, Pace
from learner.models import open_model
from pserver.errors import Unreachable
from pserver.expiry import Expiry
from pserver.keeper import Keeper
from pserver.memory_store import MemoryStore
from pserver.replica import Replica
from pserver.store import Shape
from pserver.tenure import Keeping
from tests.learner.streams import BUCKETS, COUNT, PROBABILITY, part, random_examples, random_spec
from tests.learner.test_backpressure import Now

if TYPE_CHECKING:
    from collections.abc import Callable

    from ingest.examples import Examples
    from learner.spec import ModelSpec
    from pserver.rows import Rows
    from pserver.store import Looked

MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
BATCH = 40


class Silent:
    """A store some buckets of which do not answer when single rows are asked for, now and then."""

    def __init__(self, store: MemoryStore, dice: random.Random, share: float) -> None:
        self._store, self._dice, self._share = store, dice, share
        self.silent = 0

    def look(self, wanted: Any, after: Any, limit: int) -> list[Looked | Unreachable]:
        answers = self._store.look(wanted, after, limit)
        return [self._said(answer) for answer in answers]

    def _said(self, answer: Looked | Unreachable) -> Looked | Unreachable:
        if self._dice.random() >= self._share:
            return answer
        self.silent += 1
        return Unreachable("no answer")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Model:
    """A store in memory with a model, its examples in one topic, and a keeper."""

    def __init__(self, spec: ModelSpec, examples: Examples, expiry: Expiry | None = None) -> None:
        self.now_ms, self.spec = 0, spec
        self.dice, self.scores = random.Random(5), ListWriter()
        self.source = Source("examples.test", 0)
        starts = range(0, len(examples), BATCH)
        self.records = [
            Record(self.source, n, 1, pack(part(examples, start, start + BATCH)))
            for n, start in enumerate(starts)
        ]
        self.shape = Shape("test", BUCKETS, spec.width, spec.fingerprint, "")
        self.store = MemoryStore(clock_ms=lambda: self.now_ms, nonces=self.nonce)
        self.store.create(self.shape)
        self.keeper = Keeper(
            self.store,
            self.shape,
            name="k",
            keeping=Keeping(keep_ms=100, expiry=expiry or Expiry()),
            now_ms=lambda: self.now_ms,
            draw_nonce=self.nonce,
        )

    def nonce(self) -> bytes:
        return self.dice.randbytes(8)

    def learner(self, most_rows: int | None, store: Any = None) -> Learner:
        store = self.store if store is None else store
        model = open_model(self.spec, BUCKETS)
        replica: Replica | HotRows = Replica(store, self.shape)
        if most_rows is not None:
            replica = HotRows(store, self.shape, model.asked_rows, most_rows)
        while not replica.complete:
            replica.poll()
        return Learner(
            reader=ListReader({self.source: self.records}, largest_poll=3),
            scores=self.scores,
            score_topic="scores.test",
            store=store,
            exchange=Now(self.store),
            replica=replica,
            model=model,
            fields=self.spec.fields,
            pace=Pace(push_interval_ms=30, retry_interval_ms=5),
            now_ms=lambda: self.now_ms,
            draw_nonce=self.nonce,
            rest=lambda seconds: None,
        )

    def run(self, *learners: Learner, turn: Callable[[], None] = lambda: None) -> None:
        """Take turns until all is learned."""
        for _ in range(100 * len(self.records)):
            self.now_ms += 20
            for learner in learners:
                learner.step(0.0)
            self.keeper.step()
            turn()
            if self.learned():
                return
        raise AssertionError(f"not learned: {self.store.marks(range(BUCKETS))}")

    def learned(self) -> bool:
        answers: Any = self.store.marks(range(BUCKETS))
        return all(set(each.marks.values()) == {len(self.records)} for each in answers)

    def rows(self) -> Rows:
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        return replica.table.everything().existing()


def assert_same(found: Rows, expected: Rows) -> None:
    for name, column in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)


def drawn(seed: int, growth: str = "", model: str = "") -> tuple[ModelSpec, Examples]:
    random = np.random.default_rng(seed)
    policy = ["immediate", "window"][seed % 2]
    spec = random_spec(random, policy, statistics=seed % 4 < 2, growth=growth, model=model)
    return spec, random_examples(random, spec, 500, closed=policy == "window")


@pytest.mark.parametrize("model", ["", MACHINE], ids=["logistic", "machine"])
@pytest.mark.parametrize("growth", ["", COUNT, PROBABILITY], ids=["all", "count", "probability"])
@pytest.mark.parametrize("seed", range(4))
def test_few_rows_give_the_model_that_all_rows_give(seed: int, growth: str, model: str) -> None:
    spec, examples = drawn(seed, growth, model)
    whole, few = Model(spec, examples), Model(spec, examples)
    learner = few.learner(most_rows=60)
    whole.run(whole.learner(None))
    few.run(learner)
    assert_same(few.rows(), whole.rows())
    assert learner.bounded is not None
    usage = learner.bounded.usage
    assert usage.pulled > 0
    assert usage.dropped > 0
    assert few.scores.sent == whole.scores.sent
