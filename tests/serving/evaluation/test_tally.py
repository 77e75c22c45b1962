"""Tallies add up in any order, and their metrics are exact within the bound."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.learner.validation import progressive
from headrace.serving.evaluation.tally import (
    BINS_PER_LOGIT,
    UNIT,
    MeasuredValues,
    Tally,
    auc,
    bins,
    merge,
    score_drift,
)

IMPRESSIONS = st.lists(
    st.tuples(
        st.booleans(),
        # crowded on purpose: ties, neighbours in one bin, and scores that are certain
        st.one_of(
            st.sampled_from([0.0, 0.1, 0.1001, 0.1002, 0.5, 1.0]),
            st.floats(0.0, 1.0, allow_nan=False),
        ),
        st.integers(0, 5),
    ),
    max_size=60,
)
Impressions = list[tuple[bool, float, int]]


def columns(impressions: Impressions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores, requests."""
    return (
        np.array([label for label, _, _ in impressions], np.uint8),
        np.array([score for _, score, _ in impressions], np.float64),
        np.array([request for _, _, request in impressions], np.uint64),
    )


def tally(
    labels: np.ndarray, scores: np.ndarray, requests: np.ndarray, learned: np.ndarray | None = None
) -> Tally:
    return MeasuredValues(labels, scores, requests, learned).tally(np.ones(len(labels), bool))


def counted(impressions: Impressions) -> Tally:
    """The tally of a few impressions, compared with a learner whose scores differ by a tenth."""
    labels, scores, requests = columns(impressions)
    return tally(labels, scores, requests, np.abs(scores - 0.1))


@settings(deadline=None, max_examples=30)
@given(IMPRESSIONS, IMPRESSIONS)
def test_the_tally_of_two_sets_is_the_sum_of_their_tallies(
    one: Impressions, other: Impressions
) -> None:
    apart = [(label, score, request + 100) for label, score, request in other]
    assert merge([counted(one), counted(apart)]) == counted(one + apart)


@settings(deadline=None, max_examples=80)
@given(IMPRESSIONS)
def test_the_auc_of_a_tally_is_within_its_bound_of_the_exact_auc(impressions: Impressions) -> None:
    labels, scores, _ = columns(impressions)
    found, error = auc(counted(impressions))
    exact = progressive.auc(labels, scores)
    if math.isnan(exact):
        assert math.isnan(found)
        assert math.isnan(error)
    else:
        assert abs(found - exact) <= error + 1e-12


def test_the_auc_bound_is_reached_within_one_bin_and_small_for_many_scores() -> None:
    labels, scores = np.array([0, 1], np.uint8), np.array([0.5, 0.5 + 1e-6])
    assert auc(tally(labels, scores, np.zeros(2, np.uint64))) == (0.5, 0.5)
    dice = np.random.default_rng(7)
    scores = 1 / (1 + np.exp(-dice.normal(-2.0, 1.0, 50_000)))
    labels = (dice.random(50_000) < scores).astype(np.uint8)
    found, error = auc(tally(labels, scores, np.zeros(50_000, np.uint64)))
    assert error < 0.003
    assert abs(found - progressive.auc(labels, scores)) < 1e-4


@settings(deadline=None, max_examples=30)
@given(IMPRESSIONS)
def test_the_other_metrics_of_a_tally_equal_progressive_validation(
    impressions: Impressions,
) -> None:
    labels, scores, requests = columns(impressions)
    found = counted(impressions)
    assert found.impressions == len(impressions)
    assert found.clicks == labels.sum()
    size = max(1, len(impressions))
    loss = progressive.log_loss(labels, scores)
    assert found.loss_sum / UNIT / size == pytest.approx(
        0.0 if math.isnan(loss) else loss, abs=1e-8
    )
    assert found.score_sum / UNIT == pytest.approx(float(scores.sum()), abs=1e-7)
    each = progressive.request_aucs(labels, scores, requests)
    assert found.requests == each.shape[0]
    assert found.request_auc_sum / UNIT == pytest.approx(float(each.sum()), abs=1e-7)
    differences = scores - np.abs(scores - 0.1)
    assert found.difference_sum / UNIT == pytest.approx(float(differences.sum()), abs=1e-7)
    assert found.distance_sum / UNIT == pytest.approx(float(np.abs(differences).sum()), abs=1e-7)


def test_bins_increase_with_the_score_and_have_the_documented_width() -> None:
    scores = np.linspace(0.0, 1.0, 10_001)
    places = bins(scores)
    assert (np.diff(places) >= 0).all()
    assert places.min() >= 0
    odds = scores / np.maximum(1 - scores, 1e-300)
    same = (np.diff(places) == 0) & (scores[:-1] > 0)
    assert (odds[1:][same] / odds[:-1][same] < math.exp(1 / BINS_PER_LOGIT)).all()


def scores_around(logit: float, count: int = 20_000) -> Tally:
    """Scores around one logit."""
    logits = np.random.default_rng(3).normal(logit, 1.0, count)
    scores = 1 / (1 + np.exp(-logits))
    return tally(np.zeros(count, np.uint8), scores, np.arange(count, dtype=np.uint64))


def test_score_drift_is_zero_for_equal_scores_and_grows_with_their_distance() -> None:
    before = scores_around(-2.0)
    drifts = [score_drift(scores_around(-2.0 + shift), before) for shift in (0.0, 0.2, 0.5, 1.0)]
    assert drifts[0] == pytest.approx(0.0, abs=1e-9)
    assert drifts == sorted(drifts)
    # of two normal distributions a standard deviation apart the index is 1 over all of the line
    assert 0.8 < drifts[3] < 1.05
    assert math.isnan(score_drift(Tally(), before))
