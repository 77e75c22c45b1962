"""Intervals of a learner do not depend on the machine's wall clock."""

import time

import numpy as np
import pytest

from headrace.ingest.kafka.reading.source_order import OrderPatience
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.ports import LearnerClocks
from tests.learner.in_memory import InMemoryModel, cut, records_of
from tests.learner.streams import random_examples, random_spec

HOUR_NS = 3_600 * 10**9
DEADLINE_S = 60.0


def test_a_learner_goes_on_pushing_after_the_wall_clock_steps_back_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = random_spec(np.random.default_rng(3), "immediate", statistics=False)
    examples = random_examples(np.random.default_rng(4), spec, 400, closed=False)
    records = records_of(cut(examples, 10))
    model = InMemoryModel(spec)
    pace = LearnerPacing(push_interval_ms=1, backlog_interval_ms=1, patience=OrderPatience(1, 1))
    learner = model.learner(records, pace, clocks=LearnerClocks(), largest_poll=1)
    deadline = time.monotonic() + DEADLINE_S
    while not learner.tally.applied:
        learner.step(0.0)
        assert time.monotonic() < deadline, "nothing was pushed"
    assert not model.learned({0: len(records)})

    before = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: before() - HOUR_NS)
    while not model.learned({0: len(records)}):
        learner.step(0.0)
        assert time.monotonic() < deadline, f"learned {model.marks()} of {len(records)} batches"
    assert learner.finish(learner._steady_ms() + 1_000)
