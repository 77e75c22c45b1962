"""Confidence sequences and decisions: coverage, agreement of the equations, and who is promoted."""

import numpy as np
import pytest

from headrace.learner.experiments.confidence import half_width, mixture_precision
from headrace.learner.experiments.decisions import ArmVerdict, DecisionRules, look
from tests.bench.experiments.false_promotions import SCENARIOS, detection, false_promotions
from tests.learner.experiments.moments import running_moments

HOUR_MS = 3_600_000
RULES = DecisionRules(alpha=0.05, arms=1, batch_ms=HOUR_MS, cycle_ms=24 * HOUR_MS)


def test_sequences_of_normal_values_cover_the_mean_at_every_look() -> None:
    values = np.random.default_rng(3).normal(0.3, 2.0, (2000, 500))
    counts, means, deviations = running_moments(values)
    for batches in (20, 200):
        width = half_width(counts, deviations, 0.05, mixture_precision(0.05, batches))
        missed = (np.abs(means - 0.3) > width).any(1).mean()
        assert 0.01 < missed <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 2000)


def test_the_bounds_are_the_means_that_the_e_value_does_not_reject() -> None:
    counts = np.array([5.0, 10.0, 80.0, 1000.0])
    deviations, precision = np.full(4, 1.7), mixture_precision(0.05, 40)
    width = half_width(counts, deviations, 0.05, precision)
    bounded = np.isfinite(width)
    assert bounded[1:].all()
    n, means = counts[bounded], width[bounded]
    k = precision / (precision + n)
    ratio = n * means**2 / deviations[bounded] ** 2 / (n - 1.0)
    e_value = np.sqrt(k) * np.exp(0.5 * n * (np.log1p(ratio) - np.log1p(k * ratio)))  # E_n of (2)
    np.testing.assert_allclose(e_value, 20.0, rtol=1e-9)


def test_many_values_give_the_asymptotic_sequence_of_waudby_smith() -> None:
    n, precision = np.array([1e6]), mixture_precision(0.05, 1e5)
    rho2 = 1 / precision
    asymptotic = np.sqrt((n * rho2 + 1) / (n**2 * rho2) * np.log((n * rho2 + 1) / 0.05**2))
    np.testing.assert_allclose(half_width(n, np.ones(1), 0.05, precision), asymptotic, rtol=1e-4)


def test_a_single_value_bounds_no_mean() -> None:
    assert np.isinf(half_width(np.array([1.0]), np.array([0.0]), 0.05, 4.0)).all()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_equal_arms_are_promoted_in_at_most_one_of_twenty_experiments(scenario: str) -> None:
    assert false_promotions(scenario, runs=300, days=7) <= 0.05


def test_a_gain_of_half_a_percent_is_found() -> None:
    found = detection(runs=100)
    assert found.found == 1.0
    assert found.without_cycle <= found.median


def differences(mean: float, batches: int) -> tuple[np.ndarray, np.ndarray]:
    weights = np.full(batches, 1000.0)
    noise = np.random.default_rng(1).normal(0, 0.0005, batches)
    return weights * (mean + noise - noise.mean()), weights


def test_a_better_arm_is_promoted_at_the_end_of_a_cycle_and_not_before() -> None:
    sums, weights = differences(-0.005, 24)
    early = look(sums[:23], weights[:23], 23, RULES)
    assert (early.verdict, early.high < 0) == (ArmVerdict.UNDECIDED, True)
    assert "waiting for the end of a whole cycle" in early.reason
    assert look(sums, weights, 24, RULES).verdict is ArmVerdict.BETTER


def test_a_promotion_needs_ten_batches_with_examples() -> None:
    sums, weights = differences(-0.005, 9)
    found = look(sums, weights, 24, RULES)
    assert found.verdict is ArmVerdict.UNDECIDED
    assert found.reason == "better, after 9 of 10 batches"


def test_a_worse_arm_is_eliminated_without_waiting_for_a_cycle() -> None:
    sums, weights = differences(0.005, 7)
    found = look(sums, weights, 7, RULES)
    assert found.verdict is ArmVerdict.ELIMINATED
    assert found.reason.startswith("worse than the control")


def test_an_arm_whose_gain_is_too_small_is_eliminated() -> None:
    sums, weights = differences(-0.0001, 200)
    sums *= 0.2
    rules = RULES._replace(least_gain=0.001)
    assert look(sums, weights, 199, rules).verdict is ArmVerdict.ELIMINATED


def test_more_arms_need_more_evidence() -> None:
    sums, weights = differences(-0.0002, 24)
    alone, many = (look(sums, weights, 24, RULES._replace(arms=arms)) for arms in (1, 64))
    assert many.high > alone.high


def test_batches_without_examples_do_not_count() -> None:
    sums, weights = differences(-0.005, 12)
    empty = np.zeros(12)
    padded = look(np.concatenate((sums, empty)), np.concatenate((weights, empty)), 24, RULES)
    alone = look(sums, weights, 24, RULES)
    assert (padded.batches, padded.difference, padded.high) == (12, alone.difference, alone.high)
