"""A learner in a process of its own that steps its layers together with the test's."""

import os
import sys

import numpy as np

from headrace.learner.models.deep.deep_model import DeepModel
from headrace.learner.models.deep.process_group import GroupConfig, join_group
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from tests.learner.streams import BUCKETS, FIELDS, Bench, part, random_examples

EXAMPLES, MINI_BATCH = 48, 8
PATIENCE_S = 150.0
SPEC = """
{optimizer}
[optimizer]
name = "sgd"
alpha = 1e-6
[optimizer.embeddings]
name = "adagrad"
alpha = 1e-6
"""


def spec_of(
    mini_batch: int, optimizer: str = "adagrad", synchronous: bool = True, more: str = ""
) -> ModelSpec:
    """A deep model whose rows of ids hardly move: what learners do not share at once."""
    model = (
        f'[model]\narchitecture = "deepfm"\ndimensions = 4\nlayers = [8]\ninit_scale = 0.5\n'
        f"mini_batch = {mini_batch}\nsynchronous = {str(synchronous).lower()}"
    )
    text = FIELDS.format(policy="window").replace("[model]", model)
    dense = f'[optimizer.dense]\nname = "{optimizer}"\nalpha = 0.1\n'
    if optimizer == "adagrad":
        dense += "epsilon = 0.1\n"  # or it would make steps of 0.1 of what is rounded elsewhere
    if more:
        dense = f"[optimizer.dense]\n{more}"
    return parse_spec(text + SPEC.format(optimizer="") + dense, "test.toml")


def member(spec: ModelSpec) -> Bench:
    """A learner's model and what it holds."""
    bench = Bench(spec)
    assert isinstance(bench.model, DeepModel)
    assert bench.shape.buckets == BUCKETS
    return bench


def main(rank: int, size: int, port: int, rounds: int) -> None:
    """Take part in some rounds, print what was gained of all chunks, and die without a word."""
    bench = member(spec_of(MINI_BATCH))
    bench.model.step_together(join_group(GroupConfig(rank, size, port=port, timeout_s=PATIENCE_S)))  # type: ignore[attr-defined]
    examples = random_examples(np.random.default_rng(7), bench.spec, EXAMPLES, closed=True)
    for number in range(rounds):
        begin = (number * size + rank) * MINI_BATCH
        bench.learn(part(examples, begin, begin + MINI_BATCH))
    deltas = bench.gained()
    layers = deltas.ids & np.uint64(1023) == 1001
    print(
        " ".join(map(float.hex, deltas.values[layers].astype(float).ravel().tolist())), flush=True
    )
    os._exit(0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
