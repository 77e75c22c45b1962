"""Probabilities of log-odds."""

import numpy as np

from headrace.learner.models.deep.kernels import probabilities


def test_probabilities_are_those_of_log_odds_and_never_certain() -> None:
    log_odds = np.array([-np.inf, -50.0, -2.0, 0.0, 2.0, 50.0, np.inf], np.float32)
    found = probabilities(log_odds)
    expected = 1.0 / (1.0 + np.exp(-np.clip(log_odds.astype(np.float64), -35.0, 35.0)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[0] > 0.0
    assert np.log(found).min() > -36.0


def test_nan_log_odds_stay_nan_for_the_guard() -> None:
    assert np.isnan(probabilities(np.array([np.nan], np.float32))[0])
