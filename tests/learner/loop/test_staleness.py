"""One setting bounds how much a learner has learned before others can see it."""

from itertools import pairwise

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.learner.loop.merging import ExampleBatch
from headrace.learner.loop.pacing import (
    AT_EASE,
    BadPushInterval,
    LearnerPacing,
    PushInterval,
    PushTimer,
    parse_push_interval,
)
from headrace.learner.spec.model_spec import ModelSpec
from tests.learner.in_memory import InMemoryModel, records_of
from tests.learner.loop.several import Sent, Turns
from tests.learner.streams import part, random_examples, random_spec

BATCH = 40
TURN_MS = 2
"""Between two turns of a learner in `several.Turns`; it learns a batch in each."""


def stream(seed: int, impressions: int = 900) -> tuple[ModelSpec, list[Examples]]:
    dice = np.random.default_rng(seed)
    spec = random_spec(dice, "immediate", statistics=True)
    examples = random_examples(dice, spec, impressions, closed=False)
    starts = range(0, len(examples), BATCH)
    return spec, [part(examples, start, start + BATCH) for start in starts]


@pytest.mark.parametrize(
    ("text", "meant", "said"),
    [
        ("", AT_EASE, "at ease"),
        ("batch", PushInterval(examples=1), "every batch"),
        ("20000", PushInterval(examples=20_000), "every 20000 examples"),
        ("50ms", PushInterval(interval_ms=50), "every 50 ms"),
    ],
)
def test_a_push_interval_is_a_batch_a_number_or_a_time(
    text: str, meant: PushInterval, said: str
) -> None:
    assert parse_push_interval(text) == meant
    assert str(meant) == said


@pytest.mark.parametrize("text", ["0", "0ms", "50 ms", "1s", "batches", "-3", "1e3"])
def test_an_invalid_push_interval_is_refused(text: str) -> None:
    with pytest.raises(BadPushInterval, match=f"got '{text}'"):
        parse_push_interval(text)


def alone(setting: str, answer_ms: int, impressions: int) -> list[Sent]:
    """Let one learner learn a batch every 2 ms; return its rounds while there was any left."""
    spec, batches = stream(7, impressions)
    turns = Turns(
        spec, batches, 1, parse_push_interval(setting), answer_ms=answer_ms, others_ms=200
    )
    turns.run()
    total, rounds = sum(len(each) for each in batches), turns.exchanges[0].rounds
    assert rounds[-1].examples == total
    return [each for each in rounds if each.examples < total]


def gaps_ms(rounds: list[Sent]) -> list[int]:
    return [later.at_ms - earlier.at_ms for earlier, later in pairwise(rounds)]


def carried(rounds: list[Sent]) -> list[int]:
    return [later.examples - earlier.examples for earlier, later in pairwise(rounds)]


@pytest.mark.parametrize(("setting", "every_ms"), [("8ms", 8), ("20ms", 20), ("90ms", 90)])
def test_a_push_interval_in_ms_holds_under_backlog(setting: str, every_ms: int) -> None:
    rounds = alone(setting, answer_ms=4, impressions=9_000)
    # it starts with what it has learned by then, and slows down to its interval
    steady = [each for each in rounds if each.at_ms > 2 * every_ms]
    assert len(steady) > 3
    assert set(gaps_ms(steady)) == {every_ms}
    assert carried(steady) == [BATCH * every_ms // TURN_MS] * (len(steady) - 1)


def test_a_push_interval_below_the_answer_time_pushes_at_each_answer() -> None:
    rounds = alone("10ms", answer_ms=24, impressions=4000)
    # found in the step in which it is there, and sent in the next
    assert set(gaps_ms(rounds)) == {24 + TURN_MS}
    assert set(carried(rounds)) == {BATCH * (24 + TURN_MS) // TURN_MS}


@pytest.mark.parametrize("answer_ms", [0, 60])
@pytest.mark.parametrize(("setting", "most"), [("batch", BATCH), ("100", 120), ("400", 400)])
def test_a_push_interval_in_examples_pushes_with_the_batch_that_reaches_the_number(
    setting: str, most: int, answer_ms: int
) -> None:
    rounds = alone(setting, answer_ms, impressions=3000)
    assert len(rounds) > 4
    assert set(carried(rounds)) == {most}
    if not answer_ms:
        assert set(gaps_ms(rounds)) == {most // BATCH * TURN_MS}


def test_a_push_interval_in_examples_does_not_delay_a_slow_stream() -> None:
    rounds = alone("1000000", answer_ms=4, impressions=12_000)
    assert max(rounds[0].at_ms, *gaps_ms(rounds)) <= LearnerPacing().backlog_interval_ms


def test_without_a_push_interval_rounds_are_rarer_under_backlog_unless_others_push() -> None:
    pace = LearnerPacing()
    gaps = gaps_ms(alone("", answer_ms=4, impressions=25_000))
    assert max(gaps) == pace.backlog_interval_ms
    assert gaps.count(pace.backlog_interval_ms) > 2
    assert gaps[-1] < pace.backlog_interval_ms
    spec, batches = stream(7, 12_000)
    turns = Turns(spec, batches, 2, AT_EASE, others_ms=200)
    turns.run()
    steady = [each for each in turns.exchanges[0].rounds if each.at_ms > 2 * pace.push_interval_ms]
    assert len(steady) > 4
    assert max(gaps_ms(steady)) == pace.push_interval_ms


def test_rounds_become_rarer_when_other_learners_stop_pushing() -> None:
    timer = PushTimer(LearnerPacing(others_ms=100), now_ms=0)

    def interval_ms(now_ms: int) -> int:
        for _ in range(10):
            timer.adjust(now_ms, behind=True)
        timer.pushed(now_ms)
        return next(passed for passed in range(1000) if timer.due(now_ms + passed))

    assert interval_ms(99) == 50  # one that starts does not know yet whether others push
    assert interval_ms(100) == 400
    timer.others_pushed(150)
    assert interval_ms(249) == 50
    assert interval_ms(250) == 400
    for _ in range(10):
        timer.adjust(500, behind=False)
    timer.pushed(500)
    assert timer.due(550)
    assert not timer.due(549)


@pytest.mark.parametrize(("setting", "most_ms"), [("6ms", 6), ("20ms", 20), ("40ms", 40)])
def test_a_push_interval_in_ms_bounds_the_staleness_of_other_learners(
    setting: str, most_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent within the time, and folded within the time: it is what the setting promises."""
    spec, batches = stream(11, 6000)
    turns = Turns(spec, batches, 2, parse_push_interval(setting), answer_ms=2)
    other = turns.learners[1]
    folded: list[int] = []
    poll = other.replica.poll

    def noting() -> object:
        folded.append(turns.now_ms)
        return poll()

    monkeypatch.setattr(other.replica, "poll", noting)
    turns.run()
    rounds = turns.exchanges[0].rounds
    assert len(rounds) > 4
    assert max(gaps_ms(rounds)) <= most_ms + TURN_MS
    waits = [later - earlier for earlier, later in pairwise(folded)]
    # not while its own push is awaited: that is one answer more
    assert max(waits) <= most_ms + 3 * TURN_MS


def test_messages_of_one_time_are_merged_whatever_the_bound_on_examples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, batches = stream(5)
    records = [*records_of(batches[0::2]), *records_of(batches[1::2], partition=1)]
    model = InMemoryModel(spec)
    pace = LearnerPacing(staleness=PushInterval(examples=1), least_window_examples=4 * BATCH)
    learner = model.learner(records, pace, largest_poll=1000)
    taken: list[int] = []
    next_window = learner.intake.next_window

    def noting(most: int) -> list[ExampleBatch]:
        window = next_window(most)
        taken.append(len(window))
        return window

    monkeypatch.setattr(learner.intake, "next_window", noting)
    ends = {0: len(batches[0::2]), 1: len(batches[1::2])}
    for _ in range(1000):
        model.now_ms += 10
        learner.step(0.0)
        if model.learned(ends):
            break
    assert sum(taken) == len(batches)
    assert max(taken) in (3, 4)
