"""The generated logs are what their plans say, and the figures are those of known scores."""

import itertools

import numpy as np
import pytest

from tests.bench.generated.generated_logs import (
    QUICK,
    entropy,
    excess_in_errors,
    figures,
    windows,
)
from tests.bench.generated.log_generator import LOGS, generate, plans


def test_the_plans_span_the_range_that_defaults_must_cope_with() -> None:
    found = plans()
    assert len(found) == LOGS == 20
    assert min(plan.base_rate for plan in found) == pytest.approx(0.001)
    assert max(plan.base_rate for plan in found) == pytest.approx(0.3)
    fields = [len(plan.cardinalities) for plan in found]
    assert (min(fields), max(fields)) == (3, 40)
    sizes = [size for plan in found for size in plan.cardinalities]
    assert min(sizes) < 20
    assert max(sizes) > 900_000
    assert {plan.drift for plan in found} == {"none", "slow", "fast", "violent"}
    assert {plan.bag_items for plan in found} == {0, 5, 20, 100}


@pytest.mark.parametrize("number", [3, 8, 10])
def test_a_generated_log_has_the_properties_of_its_plan(number: int) -> None:
    plan = plans()[number]
    log = generate(plan, 6_000)
    rate = plan.base_rate
    assert log.truth.mean() == pytest.approx(rate, rel=1e-6)
    assert abs(log.labels.mean() - rate) < 5.0 * np.sqrt(rate / len(log))
    assert (log.ids.max(axis=0) < plan.cardinalities).all()
    assert (np.diff(log.shown_ms) >= 0).all()
    assert (np.unique(log.requests, return_counts=True)[1] == plan.candidates).all()
    if plan.bag_items:
        assert np.diff(log.bag_offsets).max() == plan.bag_items
    again = generate(plan, 6_000)
    assert all((one == other).all() for one, other in zip(log[1:], again[1:], strict=True))


def test_a_constant_that_knows_the_rate_has_a_normalized_entropy_of_one() -> None:
    log = generate(plans()[10], 6_000)
    rate = log.labels[2_000:].mean()
    found = figures(log, np.full(len(log), rate), QUICK)
    assert found["ne"] == pytest.approx(1.0)
    assert 1.0 <= found["worst_ne"] < 1.2
    assert np.isnan(entropy(np.zeros(5, np.int8)))


def test_a_worse_prediction_is_above_by_its_paired_standard_errors() -> None:
    random = np.random.default_rng(1)
    others = random.random(20_000)
    losses = others + random.normal(0.05, 0.5, 20_000)
    gaps = losses - others
    expected = gaps.mean() / (gaps.std(ddof=1) / np.sqrt(gaps.size))
    assert excess_in_errors(losses, others) == pytest.approx(expected)
    assert excess_in_errors(others, losses) == -excess_in_errors(losses, others)
    assert excess_in_errors(others, others) == 0.0


def test_windows_cover_all_impressions_after_the_first_ones() -> None:
    labels = np.tile(np.array([1] + [0] * 199, np.int8), 60)
    found = windows(labels, QUICK)
    assert (found[0][0], found[-1][1]) == (2_000, 12_000)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(found))
    assert len(found) > 2
    assert windows(labels[:2_500], QUICK) == [(2_000, 2_500)]
