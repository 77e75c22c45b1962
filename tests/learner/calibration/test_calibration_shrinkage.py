"""A mixture of the model and the click rate: never much worse than either, for any model."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.calibration.shrinkage import ShrinkageMixture
from headrace.learner.inputs.preparation import InputPreparation
from headrace.learner.spec.calibration_spec import Calibration
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.validation.progressive import log_loss, normalized_entropy
from tests.learner.calibration.calibration_pairs import check_equals, pair
from tests.learner.streams import BUCKETS, FIELDS, Bench, part, random_examples

Floats = npt.NDArray[np.float64]

ALPHA = 0.02
SECTION = f'[calibration]\nkind = "shrinkage"\nalpha = {ALPHA}\n'


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z))


def _loss(z: float, *, clicked: bool) -> float:
    return -math.log(_sigmoid(z if clicked else -z))


def _expected(
    first: float, raw: Floats, examples: Examples
) -> tuple[list[float], list[float], list[float]]:
    """Scores, the gain of b and both losses, and shows, of a plain loop over closed examples."""
    b, shrunk, halved = first, 0.0, 0.0
    clicks, scores = 0, []
    for p, clicked in zip(raw.tolist(), examples.labels.astype(bool).tolist(), strict=True):
        z = math.log(p / (1.0 - p))
        others = (b, (z + b) / 2.0)
        weights = [math.exp(-shrunk), math.exp(-halved), 1.0]
        chances = [_sigmoid(each) for each in (*others, z)]
        mixed = sum(map(float.__mul__, weights, chances)) / sum(weights)
        scores.append(mixed)
        own = _loss(z, clicked=clicked)
        lags = [_loss(each, clicked=clicked) - own for each in others]
        kept = 1.0 - ALPHA * mixed
        losses = (kept * shrunk + lags[0], kept * halved + lags[1], 0.0)
        shrunk, halved, model = (min(each, min(losses) + 10.0) for each in losses)
        shrunk, halved = shrunk - model, halved - model
        alpha = max(ALPHA, 1.0 / (2.0 + clicks))
        b -= alpha * (_sigmoid(b) - clicked) / (1.0 + 0.25 * alpha)
        clicks += clicked
    return scores, [b - first, shrunk, halved], [len(examples)] * 3


@pytest.mark.parametrize("rate", [0.5, 0.1])
def test_shrunk_scores_equal_those_of_a_plain_loop(rate: float) -> None:
    spec, bare = pair(model=f"base_rate = {rate}\n", section=SECTION)
    examples = random_examples(np.random.default_rng(2), spec, 300, closed=True)
    loop = partial(_expected, math.log(rate / (1.0 - rate)))
    check_equals(loop, (spec, bare), examples)


def _mixed(promised: Floats, labels: npt.NDArray[np.uint8], *, first: float = 0.5) -> Floats:
    """Return the answers to a model that predicts these probabilities and learns nothing."""
    spec, _ = pair(section=SECTION)
    inputs = InputPreparation(spec, BUCKETS)
    first_log_odds = math.log(first / (1.0 - first))
    layer = ShrinkageMixture(Calibration("shrinkage", 0.005), 600_000, first_log_odds)
    bench, active = Bench(spec), np.ones(BUCKETS, np.bool_)
    some = part(random_examples(np.random.default_rng(1), spec, 200, closed=True), 0, 100)
    bench.view.reserve(3)
    found = []
    for begin in range(0, len(labels), len(some)):
        these = slice(begin, begin + len(some))
        examples = replace(some, labels=labels[these], weights=None)
        labelled = inputs.begin(active, examples)
        scores = promised[these].copy()
        layer.learn(bench.view, bench.pending.reserve(), active, labelled, scores)
        found.append(scores)
    return np.concatenate(found)


@pytest.mark.parametrize("rate", [0.3, 0.02])
def test_a_diverged_model_costs_little_more_than_the_click_rate(rate: float) -> None:
    random = np.random.default_rng(3)
    labels = (random.random(20_000) < rate).astype(np.uint8)
    promised = random.choice([1e-9, 1.0 - 1e-9], 20_000)
    answers = _mixed(promised, labels, first=rate)
    assert log_loss(labels, promised) > 5.0
    assert normalized_entropy(labels, answers) < 1.03
    assert normalized_entropy(labels[500:], answers[500:]) < 1.015


def test_experts_return_after_a_sudden_drift() -> None:
    """Good, then senseless, then good again: the mixture follows within a few hundred clicks."""
    random = np.random.default_rng(5)
    truth = 1.0 / (1.0 + np.exp(-random.normal(-1.0, 1.5, 30_000)))
    labels = (random.random(30_000) < truth).astype(np.uint8)
    promised = truth.copy()
    promised[10_000:20_000] = random.permutation(truth[10_000:20_000])
    answers = _mixed(promised, labels)
    for begin, least, most in ((2_000, 0.0, 0.9), (12_000, 0.97, 1.03), (22_000, 0.0, 0.9)):
        window = slice(begin, begin + 8_000)
        assert least < normalized_entropy(labels[window], answers[window]) < most


@pytest.mark.parametrize("policy", ["immediate", "window"])
def test_late_clicks_leave_a_model_that_is_too_sure_of_itself(policy: str) -> None:
    text = FIELDS.format(policy=policy) + "[optimizer]\nalpha = 3.0\nl2 = 0.0\n"
    figures = {}
    sure = parse_spec(text, "test.toml")
    examples = random_examples(np.random.default_rng(7), sure, 6000, closed=policy == "window")
    clicked = set(examples.impression_ids.filter(examples.labels.astype(bool)).to_pylist())
    for name, spec in (("sure", sure), ("mixed", parse_spec(text + SECTION, "test.toml"))):
        scores = Bench(spec).learn(examples)
        scored = examples.kinds != Kind.CLICKED
        names = examples.impression_ids.filter(scored).to_pylist()
        labels = np.array([each in clicked for each in names], np.uint8)[3000:]
        figures[name] = normalized_entropy(labels, scores[scored][3000:])
    assert figures["sure"] > 1.2
    assert figures["mixed"] < 1.03
