"""Weights in calibration: a heavy example counts as the many it replaces."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from headrace.learner.calibration.isotonic import IsotonicScaling
from headrace.learner.calibration.platt import PlattScaling, gain_of
from headrace.learner.spec.calibration_spec import Calibration
from tests.learner.calibration.calibration_pairs import pair
from tests.learner.streams import BUCKETS, Bench, part, random_examples

Floats = npt.NDArray[np.float64]

KINDS = ["platt", "isotonic"]
PROMISED = 0.01
DEFAULT = {"platt": 0.0005, "isotonic": 0.01}


def _answers(kind: str, labels: list[int], weights: list[float]) -> Floats:
    """Return what the layer says of examples that a model promises 1 % each, as it learns them."""
    spec, _ = pair()
    layer = {"platt": PlattScaling, "isotonic": IsotonicScaling}[kind](
        Calibration(kind, DEFAULT[kind]), 600_000
    )
    bench, active = Bench(spec), np.ones(BUCKETS, np.bool_)
    some = part(random_examples(np.random.default_rng(1), spec, 100, closed=True), 0, 100)
    count, found = len(some), []
    for begin in range(0, len(labels) - count + 1, count):
        these = slice(begin, begin + count)
        examples = replace(
            some,
            labels=np.array(labels[these], np.uint8),
            weights=np.array(weights[these], np.float32),
        )
        labelled = bench.model._inputs.begin(active, examples)
        bench.view.reserve(layer.ids.shape[0])
        scores = np.full(count, PROMISED)
        layer.learn(bench.view, bench.pending.reserve(), active, labelled, scores)
        found.append(scores)
    return np.concatenate(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", [0.1, 0.02, 0.01])
def test_a_calibrated_down_sampled_stream_stays_calibrated(kind: str, rate: float) -> None:
    """One of each hundred is clicked, and of the others the part that is kept stands for all."""
    kept = round(99 * rate)
    labels, weights = ([1] + [0] * kept) * 4000, ([1.0] + [99.0 / kept] * kept) * 4000
    answers, weighs = _answers(kind, labels, weights), np.array(weights)
    half = slice(len(answers) // 2, len(answers))
    promised = float(np.average(answers[half], weights=weighs[half]))
    assert promised == pytest.approx(PROMISED, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_keep_a_calibrated_stream_calibrated(kind: str) -> None:
    """A cut by the outcome would bend it: a click's step is 99 times as long as a negative's."""
    answers = _answers(kind, ([1] + [0] * 99) * 1000, [50.0] * 100_000)
    assert float(answers[50_000:].mean()) == pytest.approx(PROMISED, rel=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_the_heaviest_example_does_not_ruin_the_calibration(kind: str) -> None:
    for label in (0, 1):
        answers = _answers(kind, [label] * 100, [1e6] + [0.0] * 99)
        moved = math.log(answers[-1] / (1 - answers[-1])) - math.log(PROMISED / (1 - PROMISED))
        assert 0.5 < (moved if label else -moved) < 4.01


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
