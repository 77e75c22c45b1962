"""A batch that would break the model is held back, and the model is as if it had never come."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ingest.dead_letters import Letter, unpack
from ingest.examples import Encoded, Examples, pack
from ingest.fakes import ListReader, ListWriter
from ingest.stream import Record, Source
from learner.guard import Guard, Limits
from learner.loop import Learner
from learner.models import open_model
from learner.pace import Pace
from learner.scores import unpack as unpack_scores
from pserver.memory_store import MemoryStore
from pserver.replica import Replica
from pserver.store import Answer, Shape
from tests.learner.streams import BUCKETS, part, random_examples, random_spec
from tests.learner.test_backpressure import Now

if TYPE_CHECKING:
    from learner.spec import ModelSpec
    from pserver.rows import Rows

BATCH = 120
BAD = 60
"""Which batch is spoiled."""
LIMITS = Limits(warm_up_examples=2000, least_examples=50)


class Stage:
    """One learner over a stream of batches, and all that it wrote."""

    def __init__(self, spec: ModelSpec, batches: list[Examples], push_interval_ms: int = 50):
        self.now_ms, dice = 0, random.Random(5)
        source = Source("examples.test", 0)
        records = [Record(source, at, 1, pack(each)) for at, each in enumerate(batches)]
        self.store = MemoryStore(clock_ms=lambda: self.now_ms, nonces=lambda: dice.randbytes(8))
        self.shape = Shape("test", BUCKETS, spec.width, spec.fingerprint, "")
        self.store.create(self.shape)
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        self.written, self.end = ListWriter(), len(batches)
        self.learner = Learner(
            reader=ListReader({source: records}, largest_poll=3),
            scores=self.written,
            score_topic="scores.test",
            store=self.store,
            exchange=Now(self.store),
            replica=replica,
            model=open_model(spec, BUCKETS),
            fields=spec.fields,
            pace=Pace(push_interval_ms=push_interval_ms, backlog_interval_ms=push_interval_ms),
            now_ms=lambda: self.now_ms,
            draw_nonce=lambda: dice.randbytes(8),
            rest=lambda seconds: None,
            guard=Guard(LIMITS),
            dead_letters="dead-letters",
        )

    def run(self) -> Rows:
        """Learn everything; return the rows that the store's logs make."""
        for _ in range(3000):
            self.now_ms += 10
            self.learner.step(0.0)
            answers = self.store.marks(range(BUCKETS))
            marks = [
                max(each.marks.values(), default=0) for each in answers if isinstance(each, Answer)
            ]
            if marks == [self.end] * BUCKETS:
                break
        else:
            pytest.fail(f"after 3000 steps the marks are {marks}, expected {self.end} everywhere")
        replica = Replica(self.store, self.shape)
        while not replica.complete:
            replica.poll()
        return replica.table.everything().existing()

    def letters(self) -> list[Letter]:
        """What was written of batches held back."""
        found = [unpack(value) for value in self._written("dead-letters")]
        return [each for each in found if isinstance(each, Letter)]

    def scored(self) -> int:
        """Scores of impressions, each once."""
        ids: set[str] = set()
        for value in self._written("scores.test"):
            ids.update(unpack_scores(value).impression_ids.to_pylist())
        return len(ids)

    def _written(self, topic: str) -> list[bytes]:
        return [each.value for each in self.written.sent if each.target.topic == topic]


def _stream(policy: str, model: str = "") -> tuple[ModelSpec, list[Examples]]:
    dice = np.random.default_rng(3)
    spec = random_spec(dice, policy, statistics=True, model=model)
    examples = random_examples(dice, spec, 80 * BATCH, closed=policy == "window")
    if policy == "window":  # clicks are rare, as they are
        seldom = (dice.random(len(examples)) < 0.02).astype(np.uint8)
        examples = replace(examples, labels=seldom)
    return spec, [part(examples, at, at + BATCH) for at in range(0, len(examples), BATCH)]


def _with_number(examples: Examples, value: float) -> Examples:
    features = examples.features
    numbers = features.numbers.copy()
    numbers[BATCH // 2] = value
    changed = Encoded(features.ids, features.bag_ids, features.bag_offsets, numbers)
    return replace(examples, features=changed)


def _spoiled(batches: list[Examples], how: str) -> list[Examples]:
    bad = batches[BAD]
    if how == "labels":
        bad = replace(bad, labels=np.ones(BATCH, np.uint8))
    else:
        bad = _with_number(bad, float(how))
    return [*batches[:BAD], bad, *batches[BAD + 1 :]]


def _assert_as_if_never_come(found: Rows, expected: Rows) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.shows, expected.shows)
    np.testing.assert_array_equal(found.clicks, expected.clicks)
    np.testing.assert_array_equal(found.first_seen, expected.first_seen)
    np.testing.assert_array_equal(found.last_seen, expected.last_seen)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("policy", "how", "reason"),
    [
        ("window", "nan", "expected finite numbers, found others in 1 examples"),
        ("window", "inf", "finite numbers"),
        ("window", "1e30", "gradients explode"),
        ("window", "labels", "4 times the running mean"),
    ],
)
@pytest.mark.parametrize("push_interval_ms", [10, 400])
def test_a_batch_that_would_break_the_model_leaves_no_trace_in_it(
    policy: str, how: str, reason: str, push_interval_ms: int
) -> None:
    spec, batches = _stream(policy)
    healthy = Stage(spec, [*batches[:BAD], *batches[BAD + 1 :]], push_interval_ms)
    expected = healthy.run()
    assert healthy.letters() == []
    stage = Stage(spec, _spoiled(batches, how), push_interval_ms)
    _assert_as_if_never_come(stage.run(), expected)
    (letter,) = stage.letters()
    assert (letter.topic, letter.partition, letter.offset) == ("examples.test", 0, BAD)
    assert letter.event is None
    figures = stage.learner.figures
    assert (figures.held_batches, figures.held_examples) == (1, BATCH)
    # what only its gains told had its scores sent already
    scored = len(batches) - (how != "1e30")
    assert stage.scored() == scored * BATCH
    assert reason in letter.reason or "finite scores" in letter.reason


def test_a_loss_that_stays_is_learned_after_a_while() -> None:
    """Everything is clicked: some batches are held back, then the model follows."""
    spec, batches = _stream("window")
    often = [replace(each, labels=np.ones(BATCH, np.uint8)) for each in batches]
    stage = Stage(spec, [*batches[:40], *often, *often])
    stage.run()
    held = stage.learner.figures.held_batches
    assert 1 <= held <= 80
    last = unpack_scores(stage._written("scores.test")[-1]).scores
    assert last.mean() > 0.8


def test_few_examples_and_a_young_model_are_not_judged_by_their_loss() -> None:
    _, batches = _stream("window")
    guard = Guard(Limits(warm_up_examples=1000, least_examples=50))
    good, wrong = np.full(BATCH, 0.01), np.full(BATCH, 0.99)
    negative = replace(batches[0], labels=np.zeros(BATCH, np.uint8))
    assert guard.judge(negative, wrong, 0.0) is None
    for _ in range(200):
        guard.judge(negative, good, 0.0)
    assert guard.judge(part(negative, 0, 49), wrong[:49], 0.0) is None
    assert guard.judge(negative, wrong, 0.0) is not None
