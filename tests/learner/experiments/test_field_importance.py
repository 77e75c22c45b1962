"""The worth of fields: equal to retraining without them, with intervals that hold."""

import math
from dataclasses import replace
from threading import Event

import numpy as np
import numpy.typing as npt
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.encoder import Encoder
from headrace.learner.batch.sources import FilePosition
from headrace.learner.errors import LearnerError
from headrace.learner.experiments.arm import FieldSelection
from headrace.learner.experiments.field_importance import (
    ImportanceOptions,
    ImportanceReport,
    measure_importance,
    removed_with,
    spec_without,
)
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.experiments.experiment_runs import SPEC, ListedBlocks
from tests.learner.streams import random_examples

MINUTE_MS = 60_000
OPTIONS = ImportanceOptions(batch_ms=MINUTE_MS)


def _spec(more: str = "", policy: str = "window") -> ModelSpec:
    text = SPEC.replace("{policy}", policy).replace("{prior_clicks}", "0.9")
    return parse_spec(text + more, "test.toml")


def _log(spec: ModelSpec, impressions: int = 900) -> ListedBlocks:
    examples = random_examples(np.random.default_rng(3), spec, impressions, closed=True)
    return ListedBlocks([part_of(examples, begin, begin + 50) for begin in range(0, 900, 50)])


def _measured(spec: ModelSpec, log: ListedBlocks, options: ImportanceOptions) -> ImportanceReport:
    report = measure_importance(spec, log, options, Event(), lambda _, __: None)
    assert report is not None
    return report


def test_a_field_is_left_out_with_all_crosses_and_statistics_computed_from_it() -> None:
    spec = _spec()
    assert removed_with(spec, "tags") == ()
    assert "both" in removed_with(spec, "user")
    named = {each.name for each in spec.statistics if "user" in (each.of, *each.cross)}
    assert named <= {*removed_with(spec, "user")}
    without = spec_without(spec, "user")
    kept = {each.name for each in without.fields.singles}
    kept |= {each.name for each in without.statistics}
    assert not kept & {"user", *removed_with(spec, "user")}
    assert "item" in kept


def test_admission_names_only_the_fields_that_remain() -> None:
    section = '[admission]\nkind = "count"\nsightings = 2\nfields = ["user", "item"]\n'
    without = spec_without(_spec(section), "user")
    assert without.admission is not None
    assert without.admission.fields == ("item",)
    alone = spec_without(_spec(section.replace('"user", ', "")), "item")
    assert alone.admission is None


def test_the_worth_of_a_bag_is_the_loss_of_a_model_trained_without_it() -> None:
    spec = _spec()
    log = _log(spec)
    report = _measured(spec, log, OPTIONS._replace(names=("tags",), recent_ms=10**9))
    blocks = [block.examples for block in log.blocks(FilePosition())]
    whole = _losses(InMemoryModel(spec), blocks)
    # the encoder of the smaller spec would make the same ids: here they are cut from the block
    smaller = spec_without(spec, "tags")
    select = FieldSelection(spec.fields, smaller.fields)
    parts = _losses(InMemoryModel(smaller), [select(each) for each in blocks])
    [worth] = report.worths
    assert worth.worth == pytest.approx(parts.mean() - whole.mean(), abs=1e-12)
    assert report.loss == pytest.approx(whole.mean(), abs=1e-12)
    assert worth.low < worth.worth < worth.high
    assert report.weight == report.examples == 900


def _losses(model: InMemoryModel, blocks: list[Examples]) -> npt.NDArray[np.float64]:
    found = []
    for examples in blocks:
        scores = model.learn(examples)
        assert (examples.kinds == Kind.CLOSED).all()
        found.append(-np.log(np.where(examples.labels > 0, scores, 1.0 - scores)))
    return np.concatenate(found)


def test_only_the_second_half_of_the_log_counts_by_default() -> None:
    spec = _spec()
    log = _log(spec)
    half = _measured(spec, log, OPTIONS._replace(names=("tags",)))
    whole = _measured(spec, log, OPTIONS._replace(names=("tags",), recent_ms=10**9))
    recent = _measured(spec, log, OPTIONS._replace(names=("tags",), recent_ms=10 * MINUTE_MS))
    # the log begins within a minute
    assert (recent.batches, half.batches, whole.batches) == (10, 31, 61)
    assert recent.begin_ms - whole.begin_ms == 51 * MINUTE_MS
    assert 0.4 < half.weight / whole.weight < 0.6


def test_a_field_that_decides_clicks_is_found_and_noise_is_not() -> None:
    spec = parse_spec(
        '[model]\nname = "a"\n[label]\npolicy = "window"\n[optimizer]\nalpha = 0.1\n'
        '[fields.user]\nnumber = 1\ntransform = "id"\n'
        '[fields.noise]\nnumber = 2\ntransform = "id"\n',
        "a.toml",
    )
    dice = np.random.default_rng(5)
    shown = random_examples(dice, _spec(), 6000, closed=True)
    users = dice.integers(0, 5, 6000)
    events = [{"user": f"u{user}", "noise": int(dice.integers(5))} for user in users]
    labels = (dice.random(6000) < np.where(users == 0, 0.8, 0.1)).astype(np.uint8)
    examples = replace(
        shown,
        fingerprint=spec.fields.fingerprint,
        labels=labels,
        features=Encoder(spec.fields).encode(events),
    )
    log = ListedBlocks([part_of(examples, begin, begin + 100) for begin in range(0, 6000, 100)])
    report = _measured(spec, log, OPTIONS)
    assert [each.name for each in report.worths] == ["user", "noise"]
    user, noise = report.worths
    assert user.low > 0.05
    assert noise.low < 0.0 < noise.worth + 0.02


def test_a_field_that_another_section_needs_is_reported_as_not_measured() -> None:
    spec = parse_spec(
        '[model]\nname = "a"\n[fields.user]\nnumber = 1\ntransform = "id"\n', "a.toml"
    )
    report = _measured(spec, ListedBlocks([]), OPTIONS)
    [worth] = report.worths
    assert math.isnan(worth.worth)
    assert "at least one table [fields.NAME]" in worth.reason


def test_an_unknown_name_is_refused_with_the_names_of_the_spec() -> None:
    with pytest.raises(LearnerError, match=r"one of item, user.*got colour"):
        _measured(_spec(), ListedBlocks([]), OPTIONS._replace(names=("colour",)))


def test_a_measurement_stops_after_a_block_if_asked_to() -> None:
    spec, stop = _spec(), Event()
    stop.set()
    steps: list[int] = []
    found = measure_importance(
        spec, _log(spec), OPTIONS._replace(names=("tags",)), stop, lambda _, n: steps.append(n)
    )
    assert found is None
    assert steps == [100]
