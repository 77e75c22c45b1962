"""A model with a calibration layer beside the same model without one."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from headrace.ingest.examples.batch import Examples
from headrace.learner.spec.calibration_spec import CALIBRATION_NUMBER
from headrace.learner.spec.model_spec import ModelSpec
from tests.learner.streams import Bench, random_spec

SECTION = '[calibration]\nkind = "platt"\nalpha = 0.01\n'


DEEP = 'architecture = "wide_and_deep"\ndimensions = 3\nlayers = [4]\nmini_batch = 8\n'


def pair(
    policy: str = "window", model: str = "", section: str = SECTION
) -> tuple[ModelSpec, ModelSpec]:
    """The same model with the layer and without it."""
    if model == DEEP:
        pytest.importorskip("torch", reason="deep models are an extra")
    both = (
        random_spec(np.random.default_rng(1), policy, True, each, model) for each in (section, "")
    )
    with_layer, bare = both
    return with_layer, bare


Loop = Callable[[np.ndarray, Examples], tuple[list[float], Sequence[float], Sequence[float]]]
"""The model's scores -> calibrated ones, the gains of the layer's rows, and their shows."""


def check_equals(loop: Loop, specs: tuple[ModelSpec, ModelSpec], examples: Examples) -> None:
    """A layer learns what a plain loop does, and the model learns as if it had none."""
    bench, alone = Bench(specs[0]), Bench(specs[1])
    expected, gained, shows = loop(alone.learn(examples), examples)
    np.testing.assert_allclose(bench.learn(examples), expected, rtol=1e-4)
    rows, layer = bench.rows(), layer_of(bench)
    found = sorted(rows.values[layer, 0].tolist())
    assert found == pytest.approx(sorted(gained), rel=1e-3, abs=1e-4)
    assert sorted(rows.shows[layer].tolist()) == sorted(shows)
    np.testing.assert_array_equal(rows.values[~layer], alone.rows().values)


def layer_of(bench: Bench) -> np.ndarray:
    return np.asarray(bench.rows().ids & np.uint64(1023) == CALIBRATION_NUMBER)
