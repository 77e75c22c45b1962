"""Platt calibration: learned online, pushed and served like all other rows."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples, concatenate
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.calibration.isotonic import IsotonicScaling
from headrace.learner.calibration.platt import PlattScaling
from headrace.learner.calibration.shrinkage import ShrinkageMixture
from headrace.learner.spec.calibration_spec import Calibration
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.validation.progressive import calibration, normalized_entropy
from tests.learner.calibration.calibration_pairs import DEEP, SECTION, layer_of, pair
from tests.learner.models.model_laws import check_batches_do_not_matter
from tests.learner.streams import BUCKETS, FIELDS, Bench, part, random_examples

ISOTONIC = '[calibration]\nkind = "isotonic"\nalpha = 0.3\n'
SHRINKAGE = '[calibration]\nkind = "shrinkage"\nalpha = 0.02\n'
MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
MODELS = ["", MACHINE, DEEP]


def _expected(raw: np.ndarray, examples: Examples) -> tuple[list[float], float, float]:
    """PlattScaling scores, a and b, of a plain loop."""
    a = b = 0.0
    scores = []
    for i, p in enumerate(raw):
        z = math.log(p / (1 - p))
        q = 1 / (1 + math.exp(-(1 + a) * z - b))
        scores.append(q)
        weight = 1.0 if examples.weights is None else float(examples.weights[i])
        step = weight * 0.01 * (q - examples.labels[i]) / (1 + 0.25 * 0.01 * (1 + z * z))
        step /= 1 + 0.5 * 0.01 * (1 + z * z) * q * (1 - q) * max(weight - 1, 0)
        step = min(max(step, -4 / (1 + z * z)), 4 / (1 + z * z))
        a, b = a - step * z, b - step
    return scores, a, b


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("weighed", [False, True])
def test_platt_scores_equal_those_of_a_plain_loop(model: str, weighed: bool) -> None:
    spec, bare = pair(model=model)
    examples = random_examples(np.random.default_rng(2), spec, 300, closed=True)
    if weighed:
        weights = np.random.default_rng(3).choice([0.0, 1.0, 30.0], len(examples))
        examples = replace(examples, weights=weights.astype(np.float32))
    bench, alone = Bench(spec), Bench(bare)
    expected, a, b = _expected(alone.learn(examples), examples)
    np.testing.assert_allclose(bench.learn(examples), expected, rtol=1e-4)
    rows, layer = bench.rows(), layer_of(bench)
    assert sorted(rows.values[layer, 0].tolist()) == pytest.approx(sorted([a, b]), rel=1e-3)
    assert abs(a) > 0.005
    assert rows.shows[layer].tolist() == [300, 300]
    assert rows.clicks[layer].tolist() == [int(examples.labels.sum())] * 2
    # the model learned as if nothing stood behind it
    np.testing.assert_array_equal(rows.values[~layer], alone.rows().values)


@pytest.mark.parametrize("section", [SECTION, ISOTONIC, SHRINKAGE])
@pytest.mark.parametrize("batch", [1, 7])
def test_calibrated_scores_do_not_depend_on_the_batch_size(batch: int, section: str) -> None:
    spec, _ = pair("immediate", section=section)
    examples = random_examples(np.random.default_rng(4), spec, 300, closed=False)
    check_batches_do_not_matter(Bench(spec), Bench(spec), examples, batch)


@pytest.mark.parametrize(
    ("model", "section"),
    [*((each, SECTION) for each in MODELS), ("", ISOTONIC), ("", SHRINKAGE)],
)
def test_pushed_calibration_rows_answer_as_the_learner_does(model: str, section: str) -> None:
    spec, _ = pair("immediate", model, section)
    bench, served = Bench(spec), Bench(spec)
    examples = random_examples(np.random.default_rng(5), spec, 200, closed=False)
    bench.learn(examples)
    served.view.add(bench.gained())
    asked = examples.features, examples.event_ms
    answers = served.model.predict(served.view, *asked)
    np.testing.assert_array_equal(answers, bench.model.predict(bench.view, *asked))
    ids = bench.rows().ids[layer_of(bench)]
    assert np.isin(ids, served.model.required_rows.always).all()
    served.view.clear(served.view.find(ids))
    assert np.any(served.model.predict(served.view, *asked) != answers)


def test_a_bucket_that_has_the_examples_keeps_its_half_of_the_layer() -> None:
    spec, _ = pair()
    examples = random_examples(np.random.default_rng(6), spec, 200, closed=True)
    bench = Bench(spec)
    bench.learn(part(examples, 0, 100))
    before, layer = bench.rows(), layer_of(bench)
    mine, other = bench.shape.bucket_of(before.ids[layer]).tolist()
    assert mine != other
    assert BUCKETS > 1
    bench.learn(part(examples, 100, 200), inactive=(mine,))
    after = bench.rows()
    kept, moved = (after.values[np.isin(after.ids, [row_id]), 0] for row_id in before.ids[layer])
    assert kept == before.values[layer][0, 0]
    assert moved != before.values[layer][1, 0]


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_a_model_that_is_too_sure_of_itself_is_mended(policy: str) -> None:
    """A vast learning rate fits noise: its probabilities are far too near to 0 and 1."""
    text = FIELDS.format(policy=policy) + "[optimizer]\nalpha = 3.0\nl2 = 0.0\n"
    figures = {}
    random = np.random.default_rng(7)
    sure = parse_spec(text, "test.toml")
    examples = random_examples(random, sure, 6000, closed=policy == "window")
    clicked = set(examples.impression_ids.filter(examples.labels.astype(bool)).to_pylist())
    for name, spec in (("sure", sure), ("mended", parse_spec(text + SECTION, "test.toml"))):
        scores = Bench(spec).learn(examples)
        scored = ~np.isnan(scores)
        names = examples.impression_ids.filter(scored).to_pylist()
        labels = np.array([each in clicked for each in names], np.uint8)[3000:]
        figures[name] = scores[scored][3000:], labels
    (sure_scores, labels), (mended_scores, _) = figures["sure"], figures["mended"]
    assert normalized_entropy(labels, sure_scores) > 1.2
    assert normalized_entropy(labels, mended_scores) < 1.03
    assert abs(calibration(labels, mended_scores) - 1.0) < 0.1
    surest = np.argsort(sure_scores)[-300:]
    promised = sure_scores[surest].mean() - labels[surest].mean()
    assert promised > 0.3
    assert abs(mended_scores[surest].mean() - labels[surest].mean()) < promised / 2


def test_platt_scaling_follows_a_change_of_the_click_rate() -> None:
    random = np.random.default_rng(8)
    spec, _ = pair()
    bench, layer = Bench(spec), PlattScaling(Calibration(alpha=0.01), 600_000)
    view, gaining, active = bench.view, bench.pending, np.ones(BUCKETS, np.bool_)
    for rate in (0.3, 0.05):
        examples = random_examples(random, spec, 1000, closed=True)
        examples = concatenate([examples] * 6)
        labels = (random.random(len(examples)) < rate).astype(np.uint8)
        examples = replace(examples, labels=labels)
        labelled = bench.model._inputs.begin(active, examples)
        scores = np.full(len(examples), 0.2)  # a model that learns nothing
        view.reserve(2)
        layer.learn(view, gaining.reserve(), active, labelled, scores)
        assert scores[0] == pytest.approx(0.2 if rate == 0.3 else 0.3, abs=0.07)
        assert scores[-2000:].mean() == pytest.approx(rate, abs=0.02)
    answer = np.full(1, 0.2)
    layer.apply(view, answer)
    assert answer[0] == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (PlattScaling, "platt"),
        (IsotonicScaling, "isotonic"),
        (ShrinkageMixture, "shrinkage"),
    ],
)
def test_a_broken_model_answers_nan_through_its_calibration(
    layer: type[PlattScaling], kind: str
) -> None:
    """An end of the scale in its place would hide that the model is broken."""
    asked = np.array([0.3, np.nan, 0.0, 1.0])
    layer(Calibration(kind), 600_000).apply(Bench(pair()[0]).view, asked)
    assert np.isnan(asked).tolist() == [False, True, False, False]
    if kind != "shrinkage":  # which mixes in the click rate from the start
        assert asked[[0, 2, 3]] == pytest.approx([0.3, 0.0, 1.0], abs=1e-6)


def test_the_platt_section_of_a_spec_is_validated_and_in_its_fingerprint() -> None:
    text = FIELDS.format(policy="window")
    bare, spec = parse_spec(text, "t"), parse_spec(text + SECTION, "t")
    assert (bare.calibration, spec.calibration) == (None, Calibration("platt", 0.01))
    assert bare.fingerprint != spec.fingerprint
    with pytest.raises(SpecError, match="platt"):
        parse_spec(text + '[calibration]\nkind = "plat"\n', "t")
    with pytest.raises(SpecError, match="kind"):
        parse_spec(text + "[calibration]\n", "t")
    with pytest.raises(SpecError, match="this one was removed, use"):
        parse_spec(text + '[calibration]\nkind = "request"\n', "t")
