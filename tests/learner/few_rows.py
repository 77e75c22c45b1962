"""A store with a model and learners of few rows or all, and what goes wrong with them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.deploy.connections import open_store
from headrace.ingest.examples.batch import pack
from headrace.ingest.kafka.fakes import ListReader, ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.models.factory import open_model
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.keeper.expiry import Expiry
from headrace.pserver.keeper.keeper import Keeper
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape
from tests.learner.streams import BUCKETS, part, random_examples, random_spec
from tests.learner.test_backpressure import Now

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.ingest.examples.batch import Examples
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.pserver.rows.row_codec import FoldedRows
    from headrace.pserver.store import BucketAnswer, LookResult, Push


class Silent:
    """A store whose buckets do not always answer when single rows are asked for, or to pushes.

    What was pushed and not answered may have arrived.
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


class Model:
    """A store in memory with a model, its examples in one topic, and a keeper."""

    def __init__(
        self,
        spec: ModelSpec,
        examples: Examples,
        batch: int = 40,
        expiry: Expiry | None = None,
        url: str = "",
    ) -> None:
        """`url`: of real servers, where no keeper is at work."""
        self.now_ms, self.spec = 0, spec
        self.dice, self.scores = random.Random(5), ListWriter()
        starts = range(0, len(examples), batch)
        self.records = [
            Record(Source("examples.test", 0), n, 1, pack(part(examples, start, start + batch)))
            for n, start in enumerate(starts)
        ]
        self.shape = Shape(spec.name, BUCKETS, spec.width, spec.fingerprint, "")
        self.store: Any = MemoryStore(clock_ms=lambda: self.now_ms, nonces=self.nonce)
        if url:
            self.store = open_store(url, spec.name)
        self.store.create(self.shape)
        self.expiry = expiry or Expiry()
        self.keeper = None if url else self.new_keeper()

    def new_keeper(self) -> Keeper:
        return Keeper(
            self.store,
            self.shape,
            name="k",
            keeping=FoldPolicy(keep_ms=100, keep_bytes=4000, lease_ms=50, expiry=self.expiry),
            now_ms=lambda: self.now_ms,
            draw_nonce=self.nonce,
        )

    def nonce(self) -> bytes:
        return self.dice.randbytes(8)

    def learner(self, most_rows: int | None, store: Any = None, partition: int = 0) -> Learner:
        store = self.store if store is None else store
        model = open_model(self.spec, BUCKETS)
        source = Source("examples.test", partition)
        records = [Record(source, *each[1:]) for each in self.records]
        replica: Replica | CachedReplica = Replica(store, self.shape)
        if most_rows is not None:
            replica = CachedReplica(store, self.shape, model.asked_rows, most_rows)
        while not replica.complete:
            self.now_ms += 1
            replica.poll()
        return Learner(
            reader=ListReader({source: records}, largest_poll=1),
            scores=self.scores,
            score_topic="scores.test",
            store=store,
            exchange=Now(store),
            replica=replica,
            model=model,
            fields=self.spec.fields,
            pace=LearnerPacing(push_interval_ms=30, retry_interval_ms=5),
            now_ms=lambda: self.now_ms,
            draw_nonce=self.nonce,
            rest=lambda seconds: None,
        )

    def run(self, learner: Learner, over: Callable[[], bool] = lambda: True) -> None:
        """Take turns until all is learned, and what happens meanwhile is over."""
        for _ in range(100 * len(self.records)):
            self.now_ms += 20
            learner.step(0.0)
            if self.keeper is not None:
                self.keeper.step()
            if over() and self.learned():
                return
        raise AssertionError(f"not learned: {self.store.marks(range(BUCKETS))}")

    def learned(self) -> bool:
        answers: Any = self.store.marks(range(BUCKETS))
        return all(set(each.marks.values()) == {len(self.records)} for each in answers)

    def replica(self) -> Replica:
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        return replica

    def rows(self) -> FoldedRows:
        return self.replica().table.everything().existing()


def assert_same(found: FoldedRows, expected: FoldedRows) -> None:
    for name, column in expected._asdict().items():
        np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)


def drawn(seed: int, growth: str = "", model: str = "") -> tuple[ModelSpec, Examples]:
    random = np.random.default_rng(seed)
    policy = ["immediate", "window"][seed % 2]
    spec = random_spec(random, policy, statistics=seed % 4 < 2, growth=growth, model=model)
    return spec, random_examples(random, spec, 500, closed=policy == "window")
