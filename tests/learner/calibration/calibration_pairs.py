"""A model with a calibration layer beside the same model without one."""

import numpy as np
import pytest

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


def layer_of(bench: Bench) -> np.ndarray:
    return np.asarray(bench.rows().ids & np.uint64(1023) == CALIBRATION_NUMBER)
