"""A batch that would break the model is quarantined and leaves no trace."""

import functools
import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import orjson
import pytest

from headrace.ingest.dead_letters.letter import Letter, unpack
from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.learner.kernels.pending_deltas import PendingDeltas
from headrace.learner.loop.guard.batch_guard import BatchGuard, MiniBatchGuard
from headrace.learner.loop.guard.stream_change import GuardLimits
from headrace.learner.loop.guard.surprise import SurpriseLimits
from headrace.learner.loop.merging import ExampleBatch
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.models.factory import open_model
from headrace.learner.models.row_model import RowModel
from headrace.learner.models.sync_group import MiniBatchEvidence, SyncGroup
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.row_codec import FoldedRows
from tests.learner.in_memory import InMemoryModel, cut, records_of
from tests.learner.streams import BUCKETS, random_examples, random_spec

BATCH = 120
BAD = 60
"""Which batch is spoiled."""
CLICKED = Kind.CLICKED
NOT_FINITE = "expected finite numbers, got NaN or infinity in 1 example"
NO_SCORES = "expected finite scores"
EXPLODED = "gradients explode"
CLICKS, NUMBERS = "got 120: the labels of this batch", "expected plain number 1 around"
LINEAR, MACHINE, DEEP, JOINT = "linear", "machine", "deep", "deep, stepped together"
STRENGTHS = "strengths of pairs"
LINES = {
    LINEAR: 'architecture = "logistic_regression"\n',
    MACHINE: 'architecture = "factorization_machine"\ndimensions = 3\ninit_scale = 0.1\n',
    STRENGTHS: 'architecture = "field_weighted_fm"\ndimensions = 3\ninit_scale = 0.1\n',
    DEEP: 'architecture = "deepfm"\ndimensions = 3\nlayers = [4]\n',
    JOINT: 'architecture = "dcn_v2"\ndimensions = 3\nlayers = [4]\nmini_batch = 120\n'
    "synchronous = true\n",
}
LINES |= {
    f"{JOINT}, {size}": LINES[JOINT].replace("mini_batch = 120", f"mini_batch = {size}")
    for size in (16, 40)
}
LIMITS = GuardLimits(warm_up_examples=2000)


class Stage:
    """One learner over a stream of batches, and all that it wrote."""

    def __init__(
        self,
        spec: ModelSpec,
        batches: list[Examples],
        push_interval_ms: int = 50,
        limits: GuardLimits = LIMITS,
    ):
        self.model = InMemoryModel(spec)
        self.end = len(batches)
        pace = LearnerPacing(
            push_interval_ms=push_interval_ms, backlog_interval_ms=push_interval_ms
        )
        model, together = open_model(spec, BUCKETS), spec.structure.synchronous
        self.learner = self.model.learner(
            records_of(batches),
            pace,
            model=model,
            guard=(MiniBatchGuard if together else BatchGuard)(_window_ms(spec), limits),
            group=_alone(model) if together else None,
        )

    def run(self) -> FoldedRows:
        """Learn everything; return the rows that the store's logs make."""
        for _ in range(3000):
            self.model.now_ms += 10
            self.learner.step(0.0)
            if self.model.learned({0: self.end}):
                return self.model.rows()
        pytest.fail(f"after 3000 steps: expected {self.end} everywhere, got {self.model.marks()}")

    def letters(self) -> list[Letter]:
        """The dead letters of quarantined batches."""
        found = [unpack(value) for value in self._written("dead-letters")]
        return [each for each in found if isinstance(each, Letter)]

    def scored(self) -> int:
        """Scores of impressions, each once."""
        ids: set[str] = set()
        for value in self._written("scores.test"):
            ids.update(unpack_scores(value).impression_ids.to_pylist())
        return len(ids)

    def _written(self, topic: str) -> list[bytes]:
        return [each.value for each in self.model.written.sent if each.target.topic == topic]


def _window_ms(spec: ModelSpec) -> int:
    return spec.fields.label.window_ms


def _alone(model: RowModel) -> SyncGroup:
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
    was shown, which is remembered of quarantined impressions, too.
    """
    dice = np.random.default_rng(3)
    spec = random_spec(dice, policy, statistics=policy == "window", model=LINES[model])
    examples = random_examples(dice, spec, 80 * BATCH, closed=policy == "window")
    if policy == "window":  # clicks are rare, as they are
        seldom = (dice.random(len(examples)) < 0.02).astype(np.uint8)
        examples = replace(examples, labels=seldom)
    return spec, cut(examples, BATCH)


def _with_number(examples: Examples, value: float) -> Examples:
    """Return a batch with one such number; a finite one is in another example with a minus."""
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
        ("window", LINEAR, "1e30", EXPLODED),
        ("immediate", LINEAR, "1e8", EXPLODED),
        ("immediate", LINEAR, "1e30", NO_SCORES),
        ("window", MACHINE, "1e30", NO_SCORES),
        ("immediate", MACHINE, "1e8", EXPLODED),
        ("window", DEEP, "1e30", NO_SCORES),
        ("immediate", DEEP, "1e8", EXPLODED),
        ("immediate", STRENGTHS, "1e22", EXPLODED),  # what comes after it has no scores
        ("immediate", JOINT, "nan", NOT_FINITE),
    ],
)
def test_a_quarantined_batch_leaves_no_trace_in_the_model(
    policy: str, model: str, how: str, reason: str
) -> None:
    if model in (DEEP, JOINT, STRENGTHS):
        pytest.importorskip("torch", reason="deep models are an extra")
    spec, batches = _stream(policy, model)
    # some batches before it are pushed already, or all before it are pending
    push_interval_ms = 10 if policy == "window" else 400
    expected = _without_the_bad_one(policy, model, push_interval_ms)
    stage = Stage(spec, _spoiled(batches, how), push_interval_ms)
    found = stage.run()
    (letter,) = stage.letters()
    assert reason in letter.reason
    _assert_as_if_never_come(found, expected)
    assert (letter.topic, letter.partition, letter.offset) == ("examples.test", 0, BAD)
    assert letter.event is None
    figures = stage.learner.figures
    assert (figures.quarantined_batches, figures.quarantined_examples) == (1, BATCH)
    # scores of a batch found by its deltas were sent before; an inspection comes before the scores
    told_late = reason == EXPLODED and model != JOINT
    learned = batches if told_late else [*batches[:BAD], *batches[BAD + 1 :]]
    assert stage.scored() == sum(np.count_nonzero(each.kinds != CLICKED) for each in learned)


class _UndoingGuard(BatchGuard):
    """Undoes what is learned first, as after a batch that breaks the model."""

    undone = False

    def accepts(
        self, batch: ExampleBatch, scores: npt.NDArray[np.float64], pending: PendingDeltas
    ) -> bool:
        first, self.undone = not self.undone, True
        return not first and super().accepts(batch, scores, pending)


def test_a_batch_skipped_beside_one_that_is_undone_has_its_dead_letter() -> None:
    spec, batches = _stream("immediate")
    skipped = _with_number(batches[0], math.nan)
    records = [*records_of([skipped, batches[1]]), *records_of([batches[0]], partition=1)]
    model = InMemoryModel(spec)
    guard = _UndoingGuard(_window_ms(spec), LIMITS)
    learner = model.learner(records, LearnerPacing(), guard=guard, largest_poll=10)
    for _ in range(1000):
        model.now_ms += 10
        learner.step(0.0)
        if model.learned({0: 2, 1: 1}):
            break
    assert guard.undone and model.learned({0: 2, 1: 1})
    written = [each.value for each in model.written.sent if each.target.topic == "dead-letters"]
    (letter,) = [unpack(value) for value in written]
    assert isinstance(letter, Letter)
    assert (letter.partition, letter.offset, NOT_FINITE in letter.reason) == (0, 0, True)


def test_a_group_quarantines_one_mini_batch_and_learns_the_rest_of_its_batch() -> None:
    pytest.importorskip("torch", reason="deep models are an extra")
    spec, batches = _stream("immediate", f"{JOINT}, 40")
    stage = Stage(spec, _spoiled(batches, "1e30"))
    rows = stage.run()
    (letter,) = stage.letters()
    assert letter.reason.startswith("batch of 40 examples quarantined: ")
    assert letter.value is not None
    names, shown = batches[BAD].impression_ids.to_pylist(), batches[BAD].kinds != CLICKED
    spans = [slice(begin, begin + 40) for begin in range(0, BATCH, 40)]
    (held,) = [span for span in spans if names[span] == orjson.loads(letter.value)]
    all_shown = sum(np.count_nonzero(each.kinds != CLICKED) for each in batches)
    learned = all_shown - np.count_nonzero(shown[held])
    assert stage.scored() == learned
    items = (rows.ids & np.uint64(1023)) == spec.fields["item"].number
    assert rows.shows[items].sum() == learned
    figures = stage.learner.figures
    assert (figures.quarantined_batches, figures.quarantined_examples) == (1, 40)


def test_every_mini_batch_of_a_batch_with_exploding_gradients_is_quarantined() -> None:
    """By their gradients: the scores of the first are as good as any."""
    pytest.importorskip("torch", reason="deep models are an extra")
    spec, batches = _stream("immediate", f"{JOINT}, 16")
    limits = replace(LIMITS, surprise=SurpriseLimits(numbers_beyond=1e9))
    expected = Stage(spec, [*batches[:BAD], *batches[BAD + 1 :]], limits=limits).run()
    stage = Stage(spec, _spoiled(batches, "times 1000"), limits=limits)
    _assert_as_if_never_come(stage.run(), expected)
    assert all(EXPLODED in each.reason for each in stage.letters())
    assert (
        stage.learner.figures.quarantined_batches,
        stage.learner.figures.quarantined_examples,
    ) == (1, BATCH)


def test_a_mini_batch_is_inspected_by_scores_and_gradients() -> None:
    guard = MiniBatchGuard(1000, GuardLimits(warm_up_examples=1000))
    good = np.full(BATCH, 0.01)
    negative, scored = np.zeros(BATCH, np.uint8), np.ones(BATCH, np.bool_)
    evidence = MiniBatchEvidence(good, negative, scored, 1.0)
    for _ in range(100):
        assert guard.inspect(evidence) is None
    assert NO_SCORES in (guard.inspect(evidence._replace(scores=good * np.nan)) or "")
    for largest in (2e6, math.inf, math.nan):
        assert EXPLODED in (guard.inspect(evidence._replace(largest_gradient=largest)) or "")
    assert guard.inspect(evidence._replace(scores=np.full(BATCH, 0.99))) is None


def test_messages_are_merged_again_soon_after_a_suspect_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, batches = _stream("window")
    spoiled = _spoiled(batches, "labels")
    records = [*records_of(spoiled[0::2]), *records_of(spoiled[1::2], partition=1)]
    model = InMemoryModel(spec)
    pace = LearnerPacing(window_examples=4 * BATCH)
    learner = model.learner(records, pace, guard=BatchGuard(1000, LIMITS), largest_poll=1000)
    windows: list[list[tuple[int, int]]] = []
    next_window = learner.intake.next_window

    def noting(most: int) -> list[ExampleBatch]:
        window = next_window(most)
        windows.append([(each.source.partition, each.offset) for each in window])
        return window

    monkeypatch.setattr(learner.intake, "next_window", noting)
    for _ in range(1000):
        model.now_ms += 10
        learner.step(0.0)
        if model.learned({0: len(spoiled[0::2]), 1: len(spoiled[1::2])}):
            break
    assert [each.offset for each in learner.figures.parked] == [BAD // 2]
    bad = BAD % 2, BAD // 2
    found = [place for place, window in enumerate(windows) if window == [bad]]
    after = [window for window in windows[found[-1] :] if window]
    merged = next(place for place, window in enumerate(after) if len(window) > 1)
    assert merged <= 2 * 8
