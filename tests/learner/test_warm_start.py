"""A model that gained a field starts with the rows of the smaller model."""

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.ingest.examples.batch import pack
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.spec.architecture import DENSE_NUMBER
from headrace.learner.spec.calibration_spec import CALIBRATION_NUMBER
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.spec.warm_start import check_larger, first_after
from headrace.pserver.errors import WrongModel
from headrace.pserver.snapshots.restoration import ShapeChange, restore
from headrace.pserver.snapshots.storage import SnapshotStorage
from tests.learner.in_memory import InMemoryModel, records_of
from tests.learner.streams import BUCKETS, Bench, part, random_examples
from tests.pserver.snapshots.snapshot_world import taken

SMALL = """\
[model]
name = "small"
{model}

[fields.item]
number = 1
transform = "id"

[fields.user]
number = 2
transform = "id"

[statistics.item_rate]
number = 40
statistic = "rate"
of = "item"

[optimizer]
alpha = 0.1
"""
FIELD = '[fields.size]\nnumber = 4\ntransform = "log_bucket"\n\n'
STATISTIC = '[statistics.user_age]\nnumber = 41\nstatistic = "age"\nof = "user"\n\n'
DEEP = 'architecture = "deepfm"\ndimensions = 4\nlayers = [8]'


def spec_of(model: str = "", name: str = "small", more: str = "") -> ModelSpec:
    text = SMALL.format(model=model).replace('"small"', f'"{name}"')
    return parse_spec(text.replace("[optimizer]", more + "[optimizer]"), f"{name}.toml")


def larger_of(model: str = "") -> ModelSpec:
    return spec_of(model, "large", FIELD + STATISTIC)


def learned(spec: ModelSpec, seed: int) -> InMemoryModel:
    """A model that has learned some examples."""
    world, examples = InMemoryModel(spec), random_examples(_dice(seed), spec, 60, closed=False)
    learner = world.learner(records_of([examples]), LearnerPacing(push_interval_ms=0))
    while not world.learned({0: 1}):
        world.now_ms += 10
        learner.step(0.0)
    return world


def _dice(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("model", ["", DEEP], ids=["logistic", "deepfm"])
def test_a_larger_model_begins_with_the_rows_of_the_smaller_and_with_marks_of_its_own(
    model: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    small, large = spec_of(model), larger_of(model)
    world, storage = learned(small, seed), SnapshotStorage(str(tmp_path))
    manifest = taken(world.store, storage)
    kept = check_larger(large, small, "snapshot x")
    assert kept.new == ("size", "user_age")

    target = InMemoryModel(large, 2 * BUCKETS)
    target.store.drop()
    change = ShapeChange(kept.rows, {"new/0": 7})
    stop = threading.Event()
    done = restore(
        *(target.store, storage, manifest, target.shape),
        change=change,
        stop=stop,
        tell=lambda _: None,
    )
    assert done.complete
    before, found = world.rows(), target.rows()
    layers = before.ids & np.uint64(1023) == DENSE_NUMBER
    assert layers.any() == bool(model)
    assert found.checksum() == before.chosen(~layers).checksum()
    assert [answer.marks for answer in target.answers()] == [{"new/0": 7}] * 2 * BUCKETS

    beginning = Bench(large)
    beginning.view.put(found)
    scores = beginning.learn(random_examples(_dice(seed), large, 20, closed=False))
    assert not np.isnan(scores).all()


def test_a_warm_start_keeps_the_layers_of_an_equal_network() -> None:
    ids = np.array([5 << 10 | DENSE_NUMBER, 5 << 10 | 1], np.uint64)
    same = check_larger(spec_of(DEEP, "again"), spec_of(DEEP), "snapshot x")
    assert same.rows(ids).tolist() == [True, True]
    assert same.new == ()
    for other in (
        larger_of(DEEP),
        spec_of(DEEP.replace("[8]", "[9]"), "again"),
        spec_of(DEEP, "again", STATISTIC),
    ):
        kept = check_larger(other, spec_of(DEEP), "snapshot x")
        assert kept.rows(ids).tolist() == [False, True]


PLATT, ISOTONIC = (f'[calibration]\nkind = "{kind}"\n\n' for kind in ("platt", "isotonic"))


@pytest.mark.parametrize(
    ("model", "before", "after", "kept"),
    [
        ("", PLATT, PLATT + FIELD, True),  # what is new adds nothing yet
        ("", PLATT, ISOTONIC, False),
        ("", PLATT, "", False),
        (DEEP, PLATT, PLATT, True),
        (DEEP, PLATT, PLATT + FIELD, False),  # another network
    ],
)
def test_a_warm_start_keeps_the_calibration_if_the_log_odds_continue(
    model: str, before: str, after: str, kept: bool
) -> None:
    ids = np.array([5 << 10 | CALIBRATION_NUMBER, 5 << 10 | 1], np.uint64)
    larger, original = spec_of(model, "large", after), spec_of(model, more=before)
    assert check_larger(larger, original, "snapshot x").rows(ids).tolist() == [kept, True]


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("number = 1\n", "number = 9\n", r"\[fields.item\]: expected Field.*number=1.*number=9"),
        (
            'number = 2\ntransform = "id"',
            'number = 2\ntransform = "log_bucket"',
            r"\[fields.user\]: expected .*'id'.*, found .*'log_bucket'",
        ),
        ('of = "item"', 'of = "user"', r"\[statistics.item_rate\]"),
        ("alpha = 0.1", "alpha = 0.2", r"\[optimizer\]: expected .*0.1.*, found .*0.2"),
        ("[fields.item]", '[label]\npolicy = "window"\n\n[fields.item]', r"\[label\]"),
        ("dimensions = 4", "dimensions = 5", r"rows: expected 10 floats, as .* has, found 12"),
        ("dimensions = 4", "seed = 8\ndimensions = 4", r"\[model\] seed: expected 1, found 8"),
        ('"deepfm"', '"dcn_v2"', r"\[model\] architecture: expected 'deepfm', found 'dcn_v2'"),
        ("[fields.user]\nnumber = 2", "[fields.whom]\nnumber = 2", "fields.user.*found nothing"),
    ],
)
def test_a_warm_start_refuses_a_difference_by_name(before: str, after: str, problem: str) -> None:
    text = larger_of(DEEP).text
    assert before in text
    text = text.replace(before, after, 1)
    if "whom" in text:
        text = text.replace('of = "user"', 'of = "whom"')
    with pytest.raises(WrongModel, match=problem) as refused:
        check_larger(parse_spec(text, "large.toml"), spec_of(DEEP), "snapshot x")
    assert 'expected "large" to declare the same as "small"' in str(refused.value)


def test_a_warm_start_begins_at_the_first_recent_batch_of_each_partition() -> None:
    spec = larger_of()
    examples = random_examples(np.random.default_rng(3), spec, 60, closed=True)
    batches = [part(examples, begin, begin + 10) for begin in range(0, 60, 10)]
    records = [
        Record(Source("t", number % 2), 100 + number, 0, pack(batch))
        for number, batch in enumerate(batches)
    ]
    moment = int(batches[2].append_ms[5])
    found = first_after(records, spec.fields, moment)
    assert found.offsets == {Source("t", 0): 102, Source("t", 1): 103}
    assert found.waiting == ()
    late = int(batches[4].append_ms.max())
    found = first_after(records, spec.fields, late)
    assert found.offsets == {Source("t", 0): 105, Source("t", 1): 105}
    assert found.waiting == (Source("t", 0),)
