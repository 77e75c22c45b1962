"""Calibration by request: a candidate among strong ones is clicked less than among weak ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from headrace.ingest.examples.batch import Examples, Kind
from headrace.learner.calibration.competition import CompetitionScaling
from headrace.learner.inputs.slates import request_ends
from headrace.learner.spec.calibration_spec import Calibration
from headrace.learner.validation.progressive import auc, log_loss
from tests.learner.calibration.calibration_pairs import layer_of, pair
from tests.learner.streams import BUCKETS, Bench, part, random_examples

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

ALPHA = 0.02
SECTION = f'[calibration]\nkind = "request"\nalpha = {ALPHA}\n'
SHOWN = 5


def _in_requests(examples: Examples, size: int = SHOWN) -> Examples:
    """Return the examples as requests of `size` neighbours, each shown at one moment."""
    request = np.arange(len(examples)) // size
    shown_ms = examples.shown_ms[request * size]
    names = pa.array(request).cast(pa.string())
    return replace(examples, request_ids=names, shown_ms=shown_ms, event_ms=shown_ms)


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z))


def _expected(raw: Floats, examples: Examples) -> tuple[list[float], list[float]]:
    """Scores, and a, b and c, of a plain loop over requests of closed examples."""
    a = b = c = 0.0
    scores = []
    for begin in range(0, len(raw), SHOWN):
        odds = [p / (1.0 - p) for p in raw[begin : begin + SHOWN].tolist()]
        seen = [(math.log(own), math.log1p(2.0 * (sum(odds) - own))) for own in odds]
        answers = [_sigmoid((1.0 + a) * z + b + c * g) for z, g in seen]
        scores += answers
        labels = examples.labels[begin : begin + SHOWN].tolist()
        for (z, g), answer, label in zip(seen, answers, labels, strict=True):
            squares = 1.0 + z * z + g * g
            step = ALPHA * (answer - label) / (1.0 + 0.25 * ALPHA * squares)
            step = min(max(step, -4.0 / squares), 4.0 / squares)
            a, b, c = a - step * z, b - step, min(c - step * g, 0.0)
    return scores, [a, b, c]


def test_scores_calibrated_by_request_equal_those_of_a_plain_loop() -> None:
    spec, bare = pair(section=SECTION)
    examples = _in_requests(random_examples(np.random.default_rng(2), spec, 300, closed=True))
    bench, alone = Bench(spec), Bench(bare)
    expected, state = _expected(alone.learn(examples), examples)
    np.testing.assert_allclose(bench.learn(examples), expected, rtol=1e-4)
    rows, layer = bench.rows(), layer_of(bench)
    assert sorted(rows.values[layer, 0].tolist()) == pytest.approx(sorted(state), rel=1e-3)
    np.testing.assert_array_equal(rows.values[~layer], alone.rows().values)


def test_answers_equal_the_scores_that_a_learner_makes_of_the_same_requests() -> None:
    spec, _ = pair(section=SECTION)
    examples = _in_requests(random_examples(np.random.default_rng(3), spec, 400, closed=True))
    bench = Bench(spec)
    bench.learn(part(examples, 0, 300))
    asked = part(examples, 300, 305)
    answers = bench.model.predict(bench.view, asked.features, asked.event_ms)
    several = part(examples, 300, 400)
    ends = request_ends(several.request_ids, several.shown_ms)
    assert ends.tolist() == np.repeat(np.arange(5, 101, 5), 5).tolist()
    together = bench.model.predict(bench.view, several.features, several.event_ms, ends)
    np.testing.assert_array_equal(together[:5], answers)
    np.testing.assert_allclose(bench.learn(asked), answers, rtol=1e-6)


def _one_click_a_request(random: np.random.Generator, requests: int) -> tuple[Floats, Floats]:
    """Return probabilities of candidates by themselves, and labels: one click in each request."""
    strengths = random.normal(-2.0, 1.0, (requests, SHOWN))
    odds = np.exp(strengths)
    chosen = (odds.cumsum(axis=1) / odds.sum(axis=1, keepdims=True)) > random.random((requests, 1))
    labels = np.zeros((requests, SHOWN))
    labels[np.arange(requests), chosen.argmax(axis=1)] = 1.0
    return (odds / (1.0 + odds)).ravel(), labels.ravel()


def _learned(promised: Floats, labels: Floats) -> tuple[Floats, Bench, CompetitionScaling]:
    spec, _ = pair(section=SECTION)
    layer = CompetitionScaling(Calibration("request", 0.01), 600_000)
    bench, active = Bench(spec), np.ones(BUCKETS, np.bool_)
    some = part(random_examples(np.random.default_rng(1), spec, 200, closed=True), 0, 100)
    bench.view.reserve(3)
    found = []
    for begin in range(0, len(labels), len(some)):
        these = slice(begin, begin + len(some))
        own = labels[these].astype(np.uint8)
        examples = _in_requests(replace(some, labels=own, weights=None))
        labelled = bench.model._inputs.begin(active, examples)  # type: ignore[attr-defined]
        scores = promised[these].copy()
        layer.learn(bench.view, bench.pending.reserve(), active, labelled, scores)
        found.append(scores)
    return np.concatenate(found), bench, layer


def test_the_strength_of_competitors_is_learned_where_each_request_has_one_click() -> None:
    promised, labels = _one_click_a_request(np.random.default_rng(4), 8_000)
    answers, _, _ = _learned(promised, labels)
    half = len(labels) // 2
    outcome = labels[half:].astype(np.uint8)
    assert auc(outcome, answers[half:]) > auc(outcome, promised[half:]) + 0.02
    assert log_loss(outcome, answers[half:]) < log_loss(outcome, promised[half:]) - 0.02


def test_independent_clicks_leave_the_scores_nearly_as_they_are() -> None:
    random = np.random.default_rng(5)
    promised = 1.0 / (1.0 + np.exp(-random.normal(-2.0, 1.0, 40_000)))
    labels = (random.random(40_000) < promised).astype(np.float64)
    answers, _, _ = _learned(promised, labels)
    outcome = labels.astype(np.uint8)
    assert log_loss(outcome, answers) < log_loss(outcome, promised) * 1.005


def test_calibration_by_request_keeps_the_order_within_a_request() -> None:
    promised, labels = _one_click_a_request(np.random.default_rng(6), 2_000)
    _, bench, layer = _learned(promised, labels)
    asked = np.sort(np.random.default_rng(7).random(300))
    layer.apply(bench.view, asked)
    assert (np.diff(asked) > 0.0).all()


def test_a_candidate_with_nan_is_no_competitor() -> None:
    promised, labels = _one_click_a_request(np.random.default_rng(8), 2_000)
    _, bench, layer = _learned(promised, labels)
    asked, without = np.array([0.1, np.nan, 0.2]), np.array([0.1, 0.2])
    layer.apply(bench.view, asked)
    layer.apply(bench.view, without)
    assert math.isnan(asked[1])
    assert asked[[0, 2]].tolist() == without.tolist()
    alone = np.array([0.1, 0.2])
    layer.apply(bench.view, alone, np.array([1, 2]))
    assert (alone > without).all()


def test_late_clicks_are_learned_at_the_competition_of_their_show() -> None:
    """A click comes alone, after its request: it must not count as a candidate by itself."""
    spec, _ = pair("immediate", section=SECTION)
    examples = random_examples(np.random.default_rng(9), spec, 3000, closed=False)
    bench = Bench(spec)
    scores = bench.learn(examples)
    shown = examples.kinds == Kind.SHOWN
    assert np.isfinite(scores[shown]).all()
    half = np.flatnonzero(shown)[int(shown.sum()) // 2 :]
    clicked = set(examples.impression_ids.filter(pa.array(~shown)).to_pylist())
    names = examples.impression_ids.take(half).to_pylist()
    rate = np.mean([each in clicked for each in names])
    assert scores[half].mean() == pytest.approx(rate, rel=0.15)
