"""A learner stops pushing before logs fill the store's memory, and loses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from headrace.learner.loop.pacing import AT_EASE, LearnerPacing, PushInterval, parse_push_interval
from headrace.pserver.keeper.bucket_lease import FoldPolicy
from tests.learner.in_memory import InMemoryModel, cut, records_of
from tests.learner.streams import counted, random_examples, random_spec

if TYPE_CHECKING:
    from headrace.pserver.rows.row_codec import FoldedRows
    from headrace.pserver.store import BucketAnswer

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
        records = records_of(cut(examples, 50))
        self.end = len(records)
        self.model = InMemoryModel(self.spec)
        pace = LearnerPacing(
            push_interval_ms=10,
            log_bytes_limit=limit_bytes,
            unsent_limit=unsent_limit,
            staleness=staleness,
        )
        self.learner = self.model.learner(records, pace)
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
