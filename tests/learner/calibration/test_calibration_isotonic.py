"""Isotonic calibration: many knots, and answers that rise with the model's."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples
from tests.learner.calibration.calibration_pairs import check_equals, pair
from tests.learner.streams import random_examples

ALPHA = 0.3
SECTION = f'[calibration]\nkind = "isotonic"\nalpha = {ALPHA}\n'
KNOTS = np.linspace(-8.0, 4.0, 25)


def _sigmoid(z: float) -> float:
    return 1.0 / (1.0 + math.exp(-z))


def _rising(gained: np.ndarray, shows: np.ndarray) -> np.ndarray:
    """Return the nearest that rises by a twentieth of the knots' own: by the min-max formula."""
    sizes, count = 1.0 + shows, KNOTS.shape[0]
    sums = np.concatenate(([0.0], np.cumsum(sizes * (0.95 * KNOTS + gained))))
    weights = np.concatenate(([0.0], np.cumsum(sizes)))
    ends, begins = np.meshgrid(np.arange(1, count + 1), np.arange(count))
    size = np.where(begins < ends, weights[ends] - weights[begins], np.nan)
    means = (sums[ends] - sums[begins]) / size
    pooled = [means[: k + 1, k:].min(axis=1).max() for k in range(count)]
    return np.array(pooled) + 0.05 * KNOTS


def _expected(raw: np.ndarray, examples: Examples) -> tuple[list[float], list[float], list[float]]:
    """Return calibrated scores of a plain loop, what knots gained, and what they were shown."""
    gained, shows, scores = np.zeros(25), np.zeros(25), []
    for i, p in enumerate(raw):
        z = math.log(p / (1 - p))
        inside = min(max(z, -8.0), 4.0)
        rising = _rising(gained, shows)
        scores.append(_sigmoid(float(np.interp(inside, KNOTS, rising)) + z - inside))
        own = _sigmoid(z + float(np.interp(inside, KNOTS, gained)))
        first = min(int((inside + 8.0) / 0.5), 23)
        share = (inside - KNOTS[first]) / 0.5
        weight = 1.0 if examples.weights is None else float(examples.weights[i])
        squares = (1 - share) ** 2 + share**2
        step = weight * ALPHA * (own - examples.labels[i]) / (1 + 0.25 * ALPHA * squares)
        step /= 1 + 0.5 * ALPHA * squares * own * (1 - own) * max(weight - 1, 0)
        step = min(max(step, -4 / squares), 4 / squares)
        gained[first] -= step * (1 - share)
        gained[first + 1] -= step * share
        shows[first : first + 2] += 1
    assert np.any(np.diff(0.95 * KNOTS + gained) < 0), "something was pooled"
    return scores, gained.tolist(), shows.tolist()


@pytest.mark.parametrize("weighed", [False, True])
def test_isotonic_scores_equal_those_of_a_plain_loop(weighed: bool) -> None:
    spec, bare = pair(section=SECTION)
    examples = random_examples(np.random.default_rng(2), spec, 300, closed=True)
    if weighed:
        weights = np.random.default_rng(3).choice([0.0, 1.0, 3.0], len(examples))
        examples = replace(examples, weights=weights.astype(np.float32))
    check_equals(_expected, (spec, bare), examples)
