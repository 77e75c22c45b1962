"""A learner stops pushing before logs fill the store's memory, and loses nothing."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.learner.loop.pacing import AT_EASE, LearnerPacing, PushInterval, parse_push_interval
from headrace.pserver.errors import Unreachable
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import BucketAnswer, Push
from tests.learner.in_memory import InMemoryModel, cut, records_of
from tests.learner.streams import BUCKETS, counted, random_examples, random_spec

LIMIT_BYTES = 20_000
IMPRESSIONS = 3_000


class Stage:
    """One learner, a log of examples for it, and a keeper that works on request."""

    def __init__(
        self,
        unsent_limit: int = 200,
        staleness: PushInterval = AT_EASE,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.spec = random_spec(np.random.default_rng(3), "immediate", statistics=True)
        examples = random_examples(np.random.default_rng(4), self.spec, IMPRESSIONS, closed=False)
        self.records = records_of(cut(examples, 50))
        self.end = len(self.records)
        self.model = InMemoryModel(self.spec)
        pace = LearnerPacing(
            push_interval_ms=10,
            log_bytes_limit=limit_bytes,
            unsent_limit=unsent_limit,
            staleness=staleness,
        )
        self.learner = self.model.learner(self.records, pace)
        self.keeper = self.model.keeper(FoldPolicy(keep_ms=0, keep_bytes=0, lease_ms=1000))

    def work(self, steps: int, *, keeping: bool) -> None:
        for _ in range(steps):
            self.model.now_ms += 20
            self.learner.step(0.0)
            if keeping:
                self.keeper.step()

    def rows(self) -> FoldedRows:
        return self.model.replica().table.everything()

    def answers(self) -> list[BucketAnswer]:
        return self.model.answers()

    def throttled(self) -> bool:
        return self.learner.figures.throttled

    def learned(self) -> bool:
        return self.model.learned({0: self.end})


def test_logs_stop_growing_at_the_limit_until_a_keeper_makes_room() -> None:
    stage = Stage()
    fills = [stage.learner.figures.log_fill]
    while not stage.throttled():
        stage.work(1, keeping=False)
        fills.append(stage.learner.figures.log_fill)
    assert any(0.5 < fill < 1.0 for fill in fills), "the metric shows it before learning waits"
    stage.work(300, keeping=False)
    assert stage.throttled()
    assert not stage.learned()
    sizes = [answer.log_bytes for answer in stage.answers()]
    assert max(sizes) > LIMIT_BYTES
    assert max(sizes) < 2 * LIMIT_BYTES, "what was learned already may still be pushed, no more"
    before = stage.learner.figures.examples
    stage.work(50, keeping=False)
    assert stage.learner.figures.examples == before
    assert [answer.log_bytes for answer in stage.answers()] == sizes
    stage.work(600, keeping=True)
    assert stage.learned()
    assert not stage.throttled()
    _assert_all_counted_once(stage)


def test_a_throttled_learner_learns_on_and_pushes_the_backlog_at_once() -> None:
    few, many = (Stage(limit, limit_bytes=5_000) for limit in (1, 10**6))
    for stage in (few, many):
        stage.work(300, keeping=False)
        assert stage.throttled()
    ahead = many.learner.figures.examples - few.learner.figures.examples
    assert ahead > 1_000, "all that there is"
    assert [each.log_bytes for each in many.answers()] == [each.log_bytes for each in few.answers()]
    for stage in (few, many):
        stage.work(900, keeping=True)
        assert stage.learned()
        _assert_all_counted_once(stage)
    assert many.learner.tally.rows < 0.8 * few.learner.tally.rows


@pytest.mark.parametrize("text", ["batch", "1000", "20ms"])
def test_a_throttled_learner_with_a_push_interval_stops_learning(text: str) -> None:
    stage = Stage(10**6, parse_push_interval(text))
    while not stage.throttled():
        stage.work(1, keeping=False)
    before = stage.learner.figures.examples
    stage.work(50, keeping=False)
    assert stage.learner.figures.examples == before


def _assert_all_counted_once(stage: Stage) -> None:
    rows = stage.rows()
    for name, number in counted(stage.spec).items():
        mine = (rows.ids & np.uint64(1023)) == number
        assert rows.shows[mine].sum() == IMPRESSIONS, name


class AwayStore:
    """A store that leaves one bucket unanswered while it is away."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.away: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def push(self, pushes: Sequence[Push]) -> list[BucketAnswer | Unreachable]:
        reached = [push for push in pushes if push.bucket != self.away]
        answers = {answer.bucket: answer for answer in self._store.push(reached)}
        return [answers.get(push.bucket, Unreachable("no answer")) for push in pushes]


def test_learning_waits_at_a_bound_while_a_bucket_is_away_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = 500
    stage = Stage(limit_bytes=1 << 30)
    store = AwayStore(stage.model.store)
    pace = LearnerPacing(push_interval_ms=10, unanswered_limit=limit)
    learner = stage.learner = stage.model.learner(stage.records, pace, store=store)
    stage.work(10, keeping=False)
    before = learner.figures.examples
    store.away = 0
    stage.work(300, keeping=False)
    learned = learner.figures.examples - before
    assert limit <= learned < 2 * limit, "to the limit, and the batches before the first silence"
    assert learner.figures.waiting_for_buckets
    assert f"1 of {BUCKETS} buckets did not answer" in caplog.text
    others = [answer.marks for answer in stage.answers() if answer.bucket != 0]
    assert len({frozenset(marks.items()) for marks in others}) == 1, "the others have everything"

    store.away = None
    stage.work(600, keeping=False)
    assert stage.learned()
    assert "learning continues" in caplog.text
    assert learner.figures.unanswered_examples == 0
    _assert_all_counted_once(stage)
