"""The five figures compared with scikit-learn, or with slow loops."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from headrace.learner.validation.progressive import (
    auc,
    calibration,
    log_loss,
    normalized_entropy,
    progressive,
    request_auc,
)
from tests.effort import examples

# few values, so that there are ties
ROWS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9]), st.integers(0, 6)),
    min_size=1,
    max_size=80,
)


def _columns(rows: list[tuple[int, float, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels, scores, requests = zip(*rows, strict=True)
    return np.array(labels, np.uint8), np.array(scores), np.array(requests, np.int64)


@settings(max_examples=examples(200), deadline=None)
@given(ROWS)
def test_auc_is_scikit_learns_with_ties(rows: list[tuple[int, float, int]]) -> None:
    labels, scores, _ = _columns(rows)
    if labels.min() == labels.max():
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(metrics.roc_auc_score(labels, scores))


@settings(max_examples=examples(200), deadline=None)
@given(ROWS)
def test_request_auc_is_the_mean_over_requests_with_both_labels(
    rows: list[tuple[int, float, int]],
) -> None:
    labels, scores, requests = _columns(rows)
    each = []
    for request in np.unique(requests):
        mine = requests == request
        if labels[mine].min() != labels[mine].max():
            each.append(metrics.roc_auc_score(labels[mine], scores[mine]))
    found = request_auc(labels, scores, requests)
    assert found == pytest.approx(np.mean(each)) if each else math.isnan(found)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS)
def test_log_loss_is_scikit_learns(rows: list[tuple[int, float, int]]) -> None:
    labels, scores, _ = _columns(rows)
    assert log_loss(labels, scores) == pytest.approx(
        metrics.log_loss(labels, scores, labels=[0, 1])
    )


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, st.integers(0, 2**32 - 1))
def test_an_impression_of_weight_k_is_k_impressions(
    rows: list[tuple[int, float, int]], seed: int
) -> None:
    labels, scores, requests = _columns(rows)
    weights = np.random.default_rng(seed).integers(0, 4, len(rows))
    repeated = (np.repeat(each, weights) for each in (labels, scores, requests))
    found = progressive(labels, scores, requests, weights.astype(np.float64))
    assert astuple(found) == pytest.approx(astuple(progressive(*repeated)), nan_ok=True)


def test_a_constant_answer_has_the_entropy_of_the_rate_and_is_calibrated() -> None:
    labels = np.array([1, 0, 0, 0] * 50, np.uint8)
    scores = np.full(200, 0.25)
    assert normalized_entropy(labels, scores) == pytest.approx(1.0)
    assert calibration(labels, scores) == pytest.approx(1.0)
    assert calibration(labels, scores * 2) == pytest.approx(2.0)


def test_certain_mistakes_cost_much_but_not_everything() -> None:
    assert 30 < log_loss(np.array([1], np.uint8), np.array([0.0])) < 40


def test_figures_of_no_impressions_are_nan() -> None:
    nothing = progressive(np.zeros(0, np.uint8), np.zeros(0), np.zeros(0, np.int64))
    assert all(
        math.isnan(value)
        for value in (
            nothing.auc,
            nothing.request_auc,
            nothing.log_loss,
            nothing.normalized_entropy,
            nothing.calibration,
        )
    )
