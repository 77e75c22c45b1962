"""A batch that would break the model is held back, and the model is as if it had never come."""

from __future__ import annotations

import functools
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from headrace.ingest.dead_letters.letter import Letter, unpack
from headrace.ingest.examples.batch import Examples, Kind, pack
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.kafka.fakes import ListReader, ListWriter
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.loop.batch_guard import BatchGuard, GuardLimits
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.models.factory import open_model
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import BucketAnswer, Shape
from tests.learner.streams import BUCKETS, part, random_examples, random_spec
from tests.learner.test_backpressure import Now

if TYPE_CHECKING:
    from headrace.learner.models.protocols import Model
    from headrace.learner.models.sync_group import SyncGroup
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.pserver.rows.row_codec import FoldedRows

BATCH = 120
BAD = 60
"""Which batch is spoiled."""
CLICKED = Kind.CLICKED
NOT_FINITE = "expected finite numbers, found others in 1 examples"
NO_SCORES = "expected finite scores"
EXPLODED = "gradients explode"
FAR_OFF = "4 times the running mean"
LINEAR, MACHINE, DEEP, JOINT = "linear", "machine", "deep", "deep, stepped together"
STRENGTHS = "strengths of pairs"
LINES = {
    LINEAR: 'architecture = "logistic_regression"\n',
    MACHINE: 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\n',
    STRENGTHS: 'architecture = "field_weighted_fm"\ndimensions = 3\ninit_scale = 0.1\n',
    DEEP: 'architecture = "deepfm"\ndimensions = 3\nlayers = [4]\n',
    JOINT: 'architecture = "dcn_v2"\ndimensions = 3\nlayers = [4]\nmini_batch = 16\n'
    "synchronous = true\n",
}
LIMITS = GuardLimits(warm_up_examples=2000, least_examples=50)


class Stage:
    """One learner over a stream of batches, and all that it wrote."""

    def __init__(
        self,
        spec: ModelSpec,
        batches: list[Examples],
        push_interval_ms: int = 50,
        limits: GuardLimits = LIMITS,
    ):
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
        model = open_model(spec, BUCKETS)
        self.learner = Learner(
            reader=ListReader({source: records}, largest_poll=3),
            scores=self.written,
            score_topic="scores.test",
            store=self.store,
            exchange=Now(self.store),
            replica=replica,
            model=model,
            fields=spec.fields,
            pace=LearnerPacing(
                push_interval_ms=push_interval_ms, backlog_interval_ms=push_interval_ms
            ),
            now_ms=lambda: self.now_ms,
            draw_nonce=lambda: dice.randbytes(8),
            rest=lambda seconds: None,
            guard=BatchGuard(limits),
            dead_letters="dead-letters",
            rounds=_alone(model) if spec.structure.synchronous else None,
        )

    def run(self) -> FoldedRows:
        """Learn everything; return the rows that the store's logs make."""
        for _ in range(3000):
            self.now_ms += 10
            self.learner.step(0.0)
            answers = self.store.marks(range(BUCKETS))
            marks = [
                max(each.marks.values(), default=0)
                for each in answers
                if isinstance(each, BucketAnswer)
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


def _alone(model: Model) -> SyncGroup:
    """A group of one."""
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    from headrace.learner.models.deep.deep_model import DeepModel
    from headrace.learner.models.deep.process_group import GroupConfig, ProcessGroup

    assert isinstance(model, DeepModel)
    return model.step_together(ProcessGroup(HashStore(), GroupConfig(0, 1)))


@functools.cache
def _stream(policy: str, model: str = LINEAR) -> tuple[ModelSpec, list[Examples]]:
    """Return a spec and its batches.

    With `immediate` there are no statistics: a click is counted where its impression was when it
    was shown, which is remembered of impressions held back, too.
    """
    dice = np.random.default_rng(3)
    spec = random_spec(dice, policy, statistics=policy == "window", model=LINES[model])
    examples = random_examples(dice, spec, 80 * BATCH, closed=policy == "window")
    if policy == "window":  # clicks are rare, as they are
        seldom = (dice.random(len(examples)) < 0.02).astype(np.uint8)
        examples = replace(examples, labels=seldom)
    return spec, [part(examples, at, at + BATCH) for at in range(0, len(examples), BATCH)]


def _with_number(examples: Examples, value: float) -> Examples:
    """Return a batch with one such number; a finite one stands in another example with a minus."""
    features = examples.features
    numbers = features.numbers.copy()
    one, other = np.flatnonzero(examples.kinds != CLICKED)[[BATCH // 2, BATCH // 2 + 1]]
    numbers[one] = value
    if math.isfinite(value):  # whatever the sign of the weight, one of them is far off
        numbers[other] = -value
    changed = Encoded(features.ids, features.bag_ids, features.bag_offsets, numbers)
    return replace(examples, features=changed)


def _spoiled(batches: list[Examples], how: str) -> list[Examples]:
    bad = batches[BAD]
    if how == "labels":
        bad = replace(bad, labels=np.ones(BATCH, np.uint8))
    elif how.startswith("times "):  # both ways: the loss rises whatever the sign of the weight
        changed = bad.features.numbers * float(how.removeprefix("times "))
        changed[::2] *= -1.0
        bad = replace(bad, features=replace(bad.features, numbers=changed))
    else:
        bad = _with_number(bad, float(how))
    return [*batches[:BAD], bad, *batches[BAD + 1 :]]


def _assert_as_if_never_come(found: FoldedRows, expected: FoldedRows) -> None:
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.shows, expected.shows)
    np.testing.assert_array_equal(found.clicks, expected.clicks)
    np.testing.assert_array_equal(found.first_seen, expected.first_seen)
    np.testing.assert_array_equal(found.last_seen, expected.last_seen)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-3, atol=1e-3)


@functools.cache
def _without_the_bad_one(policy: str, model: str, push_interval_ms: int) -> FoldedRows:
    spec, batches = _stream(policy, model)
    healthy = Stage(spec, [*batches[:BAD], *batches[BAD + 1 :]], push_interval_ms)
    found = healthy.run()
    assert healthy.letters() == []
    return found


@pytest.mark.parametrize(
    ("policy", "model", "how", "reason"),
    [
        ("window", LINEAR, "nan", NOT_FINITE),
        ("window", LINEAR, "inf", NOT_FINITE),
        ("window", LINEAR, "1e30", EXPLODED),
        ("window", LINEAR, "labels", FAR_OFF),
        ("immediate", LINEAR, "1e8", EXPLODED),
        ("immediate", LINEAR, "1e30", NO_SCORES),
        ("immediate", LINEAR, "times 1000", FAR_OFF),
        ("window", MACHINE, "1e30", NO_SCORES),
        ("window", MACHINE, "labels", FAR_OFF),
        ("immediate", MACHINE, "1e8", EXPLODED),
        ("window", DEEP, "1e30", NO_SCORES),
        ("window", DEEP, "labels", FAR_OFF),
        ("immediate", DEEP, "nan", NOT_FINITE),
        ("immediate", DEEP, "1e8", EXPLODED),
        ("immediate", DEEP, "times 1000", FAR_OFF),
        ("immediate", STRENGTHS, "1e22", EXPLODED),  # what comes after it has no scores
        ("window", JOINT, "1e30", NO_SCORES),
        ("window", JOINT, "labels", FAR_OFF),
        ("immediate", JOINT, "nan", NOT_FINITE),
        ("immediate", JOINT, "times 300", FAR_OFF),
        ("immediate", JOINT, "times 1000", EXPLODED),
    ],
)
@pytest.mark.parametrize("push_interval_ms", [10, 400])
def test_a_batch_that_would_break_the_model_leaves_no_trace_in_it(
    policy: str, model: str, how: str, reason: str, push_interval_ms: int
) -> None:
    if model in (DEEP, JOINT, STRENGTHS):
        pytest.importorskip("torch", reason="deep models are an extra")
    spec, batches = _stream(policy, model)
    expected = _without_the_bad_one(policy, model, push_interval_ms)
    stage = Stage(spec, _spoiled(batches, how), push_interval_ms)
    found = stage.run()
    (letter,) = stage.letters()
    assert reason in letter.reason
    _assert_as_if_never_come(found, expected)
    assert (letter.topic, letter.partition, letter.offset) == ("examples.test", 0, BAD)
    assert letter.event is None
    figures = stage.learner.figures
    assert (figures.held_batches, figures.held_examples) == (1, BATCH)
    # what only its gains told had its scores sent already; a rehearsal sends none
    told_late = reason == EXPLODED and model != JOINT
    learned = batches if told_late else [*batches[:BAD], *batches[BAD + 1 :]]
    assert stage.scored() == sum(np.count_nonzero(each.kinds != CLICKED) for each in learned)


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


def test_who_asks_for_it_learns_whatever_its_loss_but_nothing_that_breaks_the_model() -> None:
    spec, batches = _stream("window")
    limits = replace(LIMITS, loss_ratio=math.inf)
    wrong = Stage(spec, _spoiled(batches, "labels"), limits=limits)
    wrong.run()
    assert wrong.letters() == []
    broken = Stage(spec, _spoiled(batches, "1e30"), limits=limits)
    broken.run()
    assert [EXPLODED in each.reason for each in broken.letters()] == [True]


def test_few_examples_and_a_young_model_are_not_judged_by_their_loss() -> None:
    _, batches = _stream("window")
    guard = BatchGuard(GuardLimits(warm_up_examples=1000, least_examples=50))
    good, wrong = np.full(BATCH, 0.01), np.full(BATCH, 0.99)
    negative = replace(batches[0], labels=np.zeros(BATCH, np.uint8))
    assert guard.judge("p", 0, negative, wrong, 0.0) is None
    for offset in range(1, 200):
        guard.judge("p", offset, negative, good, 0.0)
    assert guard.judge("p", 200, part(negative, 0, 49), wrong[:49], 0.0) is None
    assert FAR_OFF in (guard.judge("p", 201, negative, wrong, 0.0) or "")


def test_a_batch_is_judged_by_its_loss_once_by_its_scores_and_gains_each_time() -> None:
    """Read again, it meets a model that knows less: that is not the batch's fault."""
    _, batches = _stream("window")
    guard = BatchGuard(GuardLimits(warm_up_examples=1000, least_examples=50))
    good, wrong = np.full(BATCH, 0.01), np.full(BATCH, 0.99)
    negative = replace(batches[0], labels=np.zeros(BATCH, np.uint8))
    for offset in range(100):
        assert guard.judge("p", offset, negative, good, 0.0) is None
    assert guard.judge("p", 99, negative, wrong, 0.0) is None
    assert NO_SCORES in (guard.judge("p", 99, negative, good * np.nan, 0.0) or "")
    assert EXPLODED in (guard.judge("p", 99, negative, good, 1e13) or "")
    assert FAR_OFF in (guard.judge("another", 0, negative, wrong, 0.0) or "")
    assert FAR_OFF in (guard.judge("p", 100, negative, wrong, 0.0) or "")
