"""One setting bounds how much a learner has learned that nobody else knows."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from learner.staleness import AT_EASE, BadStaleness, Staleness, parse_staleness
from tests.learner.several import Turns
from tests.learner.streams import counted, part, random_examples, random_spec

if TYPE_CHECKING:
    from ingest.examples import Examples
    from learner.pushes import Progress
    from learner.spec import ModelSpec

BATCH, IMPRESSIONS = 40, 900


def stream(seed: int) -> tuple[ModelSpec, list[Examples]]:
    dice = np.random.default_rng(seed)
    spec = random_spec(dice, "immediate", statistics=True)
    examples = random_examples(dice, spec, IMPRESSIONS, closed=False)
    starts = range(0, len(examples), BATCH)
    return spec, [part(examples, start, start + BATCH) for start in starts]


@pytest.mark.parametrize(
    ("text", "meant", "said"),
    [
        ("", AT_EASE, "at ease"),
        ("batch", Staleness(examples=1), "every batch"),
        ("20000", Staleness(examples=20_000), "every 20000 examples"),
        ("50ms", Staleness(interval_ms=50), "every 50 ms"),
    ],
)
def test_a_setting_is_one_of_three_kinds_or_none(text: str, meant: Staleness, said: str) -> None:
    assert parse_staleness(text) == meant
    assert str(meant) == said


@pytest.mark.parametrize("text", ["0", "0ms", "50 ms", "1s", "batches", "-3", "1e3"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadStaleness, match=f"found '{text}'"):
        parse_staleness(text)


@pytest.mark.parametrize("learners", [1, 2, 4])
@pytest.mark.parametrize("setting", ["batch", "100", "30ms", ""])
def test_several_learners_count_every_example_once(learners: int, setting: str) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    spec, batches = stream(seed)
    turns = Turns(spec, batches, learners, parse_staleness(setting))
    turns.run()
    rows = turns.rows()
    clicks = sum(int(each.labels.sum()) for each in batches)
    for name, number in counted(spec).items():
        mine = (rows.ids & np.uint64(1023)) == number
        if number < 40:  # statistics of an example read again may be others
            assert rows.shows[mine].sum() == IMPRESSIONS, name
            assert rows.clicks[mine].sum() == clicks, name
    assert len(turns.scores()) == IMPRESSIONS


@pytest.mark.parametrize(("setting", "most"), [("batch", BATCH), ("100", 100 + BATCH)])
def test_no_push_carries_more_than_the_bound_though_answers_are_slow(
    setting: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    spec, batches = stream(seed)
    turns = Turns(spec, batches, 2, parse_staleness(setting), answer_ms=60)
    carried: list[int] = []
    for learner in turns.learners:
        known = [0]
        send = learner._pushes.send

        def spy(progress: Progress, before: object, learner=learner, known=known, send=send):  # type: ignore[no-untyped-def]
            carried.append(learner.figures.examples - known[0])
            known[0] = learner.figures.examples
            send(progress, before)

        monkeypatch.setattr(learner._pushes, "send", spy)
    turns.run()
    assert max(carried) <= most
    assert sum(carried) == sum(len(each) for each in batches)
    assert sum(each > 0 for each in carried) >= len(batches) * BATCH // (2 * most)
