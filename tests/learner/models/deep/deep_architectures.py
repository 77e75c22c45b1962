"""The deep architectures that tests go through: their modules, and lines of specs for them."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from headrace.learner.models.deep.networks.architectures import (
    DCNv2,
    DeepFM,
    DeepInterestNetwork,
    FieldWeightedFM,
    WideAndDeep,
)
from headrace.learner.models.deep.networks.contract import NetworkShape
from headrace.learner.models.deep.networks.sequence import SequenceNetwork
from headrace.learner.spec.architecture import Structure
from headrace.learner.spec.model_spec import ModelSpec
from tests.learner.streams import Bench, random_examples, random_spec

MODULES: dict[str, Callable[[NetworkShape], torch.nn.Module]] = {
    "wide_and_deep": WideAndDeep,
    "deepfm": DeepFM,
    "dcn_v2": DCNv2,
    "field_weighted_fm": FieldWeightedFM,
    "din": DeepInterestNetwork,
    "gru": partial(SequenceNetwork, structure=Structure("m", encoder_layers=2)),
    "attention": partial(
        SequenceNetwork, structure=Structure("m", encoder="attention", encoder_layers=2)
    ),
}

OPTIMIZERS = """
[optimizer.embeddings]
alpha = 0.1
epsilon = 0.1
[optimizer.dense]
alpha = 0.05
epsilon = 0.1
"""
LINES = {
    "wide_and_deep": "layers = [6, 4]\n",
    "deepfm": "layers = [6]\n",
    "dcn_v2": "layers = [6]\ncross_layers = 3\n",
    "field_weighted_fm": "",
    "din": 'layers = [6]\nhistory = "words"\ntarget = "user"\n',
    "gru": 'layers = [6]\nhistory = "words"\ntarget = "user"\n',
    "attention": 'layers = [6]\nhistory = "words"\ntarget = "user"\nencoder = "attention"\n',
}


def spec_with(architecture: str, line: str) -> ModelSpec:
    """Return the spec of an architecture, with this line about its devices."""
    name = "sequence" if architecture in ("gru", "attention") else architecture
    model = f'architecture = "{name}"\ndimensions = 3\ninit_scale = 0.5\nmini_batch = 16\n'
    model += f"{line}\n{LINES[architecture]}"
    return random_spec(np.random.default_rng(5), "window", True, OPTIMIZERS, model)


def learned(spec: ModelSpec) -> tuple[Bench, np.ndarray]:
    """Learn a stream; return the model and its scores."""
    bench = Bench(spec)
    examples = random_examples(np.random.default_rng(6), spec, 150, closed=True)
    return bench, bench.learn(examples)


def check_equal(spec: ModelSpec, other: ModelSpec) -> Bench:
    """Assert that both learn the same, but for the order of sums; return the first."""
    (found, scores), (expected, wanted) = learned(spec), learned(other)
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-5)
    mine, others = found.rows(), expected.rows()
    np.testing.assert_array_equal(mine.ids, others.ids)
    np.testing.assert_allclose(mine.values, others.values, rtol=1e-3, atol=1e-4)
    return found
