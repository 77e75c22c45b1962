"""The split of a window's loss separates a wrong level, a wrong slope and the rest."""

import numpy as np
import pytest

from tests.bench.generated.generated_logs import entropy, log_loss
from tests.bench.generated.loss_split import chance_excess, excess_in_errors, split_loss


def _window(*, shift: float = 0.0, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return answers and labels: the true log-odds, shifted and scaled."""
    random = np.random.default_rng(1)
    truth = random.normal(-2.0, 1.0, 20_000)
    labels = (random.random(20_000) < 1.0 / (1.0 + np.exp(-truth))).astype(np.int8)
    return 1.0 / (1.0 + np.exp(-(factor * truth + shift))), labels


@pytest.mark.parametrize(("shift", "factor"), [(0.0, 1.0), (1.0, 1.0), (0.0, 2.0), (-0.5, -0.3)])
def test_the_parts_add_up_to_the_normalized_entropy(shift: float, factor: float) -> None:
    scores, labels = _window(shift=shift, factor=factor)
    found = split_loss(scores, labels)
    whole = log_loss(scores, labels).mean() / entropy(labels)
    assert 1.0 + found.total == pytest.approx(whole)
    assert found.level >= 0.0
    assert found.slope >= 0.0
    assert found.refinement <= 0.0


def test_a_shift_raises_the_level_and_a_factor_raises_the_slope() -> None:
    right = split_loss(*_window())
    assert right.level == pytest.approx(0.0, abs=1e-3)
    assert right.slope == pytest.approx(0.0, abs=1e-3)
    shifted = split_loss(*_window(shift=1.0))
    assert shifted.level > 0.05
    assert shifted.slope == pytest.approx(0.0, abs=1e-3)
    spread = split_loss(*_window(shift=2.0, factor=2.0))
    assert spread.slope > 0.05
    assert spread.refinement == pytest.approx(right.refinement)


def test_the_true_click_rate_exceeds_chance_in_about_one_of_twenty_windows() -> None:
    random, beyond = np.random.default_rng(2), 0
    for _ in range(1_000):
        labels = (random.random(2_000) < 0.05).astype(np.int8)
        excess = log_loss(np.full(2_000, 0.05), labels).mean() / entropy(labels) - 1.0
        beyond += bool(excess > chance_excess(labels))
    assert 30 <= beyond <= 70


def test_a_worse_prediction_is_above_by_its_paired_standard_errors() -> None:
    right, wrong = _window(), _window(shift=0.5)
    losses, others = log_loss(*wrong), log_loss(*right)
    gaps = losses - others
    expected = gaps.mean() / (gaps.std(ddof=1) / np.sqrt(gaps.size))
    assert excess_in_errors(losses, others) == pytest.approx(expected)
    assert excess_in_errors(losses, others) > 10.0
    assert excess_in_errors(others, losses) == -excess_in_errors(losses, others)
    assert excess_in_errors(others, others) == 0.0


def test_an_equally_good_prediction_is_rarely_above_by_two_standard_errors() -> None:
    random, beyond = np.random.default_rng(3), 0
    for _ in range(1_000):
        labels = (random.random(2_000) < 0.05).astype(np.int8)
        first, second = (np.exp(sign * random.normal(0.0, 0.2, 2_000)) * 0.05 for sign in (1, -1))
        beyond += excess_in_errors(log_loss(first, labels), log_loss(second, labels)) > 2.0
    assert 5 <= beyond <= 45
