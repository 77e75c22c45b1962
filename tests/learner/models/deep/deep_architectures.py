"""The deep architectures that tests go through: their modules, and lines of specs for them."""

from collections.abc import Callable
from functools import partial

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
