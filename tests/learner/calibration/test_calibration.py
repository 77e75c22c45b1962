"""Platt calibration: learned online, pushed and served like all other rows."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.learner.calibration.isotonic import IsotonicScaling
from headrace.learner.calibration.platt import PlattScaling, gain_of
from headrace.learner.calibration.shrinkage import ShrinkageMixture
from headrace.learner.spec.calibration_spec import Calibration
from tests.learner.calibration.calibration_pairs import DEEP, SECTION, check_equals, layer_of, pair
from tests.learner.models.model_laws import check_batches_do_not_matter, check_learned_buckets_stay
from tests.learner.streams import Bench, random_examples

ISOTONIC = '[calibration]\nkind = "isotonic"\nalpha = 0.3\n'
SHRINKAGE = '[calibration]\nkind = "shrinkage"\nalpha = 0.02\n'
MACHINE = 'architecture = "factorization_machine"\ndimensions = 3\n'
MODELS = ["", MACHINE, DEEP]


def _expected(raw: np.ndarray, examples: Examples) -> tuple[list[float], list[float], list[float]]:
    """PlattScaling scores, a and b, and their shows, of a plain loop."""
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
    assert abs(a) > 0.005
    return scores, [a, b], [len(examples)] * 2


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("weighed", [False, True])
def test_platt_scores_equal_those_of_a_plain_loop(model: str, weighed: bool) -> None:
    spec, bare = pair(model=model)
    examples = random_examples(np.random.default_rng(2), spec, 300, closed=True)
    if weighed:
        weights = np.random.default_rng(3).choice([0.0, 1.0, 30.0], len(examples))
        examples = replace(examples, weights=weights.astype(np.float32))
    check_equals(_expected, (spec, bare), examples)


@pytest.mark.parametrize("section", [SECTION, ISOTONIC, SHRINKAGE])
@pytest.mark.parametrize("batch", [1, 7])
def test_calibrated_scores_do_not_depend_on_the_batch_size(batch: int, section: str) -> None:
    spec, _ = pair("immediate", section=section)
    examples = random_examples(np.random.default_rng(4), spec, 300, closed=False)
    check_batches_do_not_matter(Bench(spec), Bench(spec), examples, batch)


@pytest.mark.parametrize(
    ("model", "section"), [*((each, SECTION) for each in MODELS), ("", ISOTONIC), ("", SHRINKAGE)]
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


@pytest.mark.parametrize("section", [SECTION, ISOTONIC])
def test_a_bucket_that_has_the_examples_keeps_its_part_of_the_layer(section: str) -> None:
    spec, _ = pair(section=section)
    examples = random_examples(np.random.default_rng(6), spec, 200, closed=True)
    check_learned_buckets_stay(Bench(spec), examples, np.random.default_rng(7))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(PlattScaling, "platt"), (IsotonicScaling, "isotonic"), (ShrinkageMixture, "shrinkage")],
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


def test_weight_one_steps_the_calibration_as_without_weights() -> None:
    """Bit for bit, because stored rows were made this way."""
    step, random = gain_of.py_func, np.random.default_rng(3)
    for _ in range(2000):
        alpha, p = float(10 ** random.uniform(-6, 0)), float(random.uniform(0, 1))
        squares = float(random.uniform(0.5, 226.0))
        for slope in (p, p - 1.0, -1.0):
            before = -alpha * slope * 1.0 / (1.0 + 0.25 * alpha * 1.0 * squares)
            assert step(alpha, slope, 1.0, p, squares) == before


def test_small_weights_scale_the_step_of_the_calibration() -> None:
    step = gain_of.py_func
    whole = step(0.3, 0.2, 1.0, 0.2, 5.0)
    assert step(0.3, 0.2, 0.0, 0.2, 5.0) == 0.0
    assert step(0.3, 0.2, 0.25, 0.2, 5.0) == pytest.approx(whole / 4)


def test_a_heavy_example_steps_the_calibration_about_as_its_copies() -> None:
    step = gain_of.py_func
    for p, label in ((0.01, 0), (0.01, 1), (0.3, 0), (0.3, 1), (0.9, 0)):
        alpha, squares, at = 0.0005, 17.0, math.log(p / (1 - p))
        for _ in range(50):
            here = 1 / (1 + math.exp(-at))
            at += squares * step(alpha, here - label, 1.0, here, squares)
        moved = at - math.log(p / (1 - p))
        assert squares * step(alpha, p - label, 50.0, p, squares) == pytest.approx(moved, rel=0.02)
