"""Deep architectures answer as the formulas of their papers, written out in plain numbers."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch

from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.learner.models.deep.networks.sequence import SequenceNetwork, latest
from headrace.learner.spec.architecture import Structure
from tests.learner.models.deep.deep_architectures import MODULES
from tests.learner.models.deep.slow_architectures import ARCHITECTURES, Inputs, parameters_in

FORMS = [
    NetworkShape(vectors=1, dimensions=1, layers=(1,), cross_layers=1, target=0),
    NetworkShape(vectors=4, dimensions=3, layers=(5,), cross_layers=2, target=1),
    NetworkShape(vectors=5, dimensions=11, layers=(6, 4, 3), cross_layers=3, target=4),
]
"""11: some floats are read eight at a time, some alone."""


def _dice(module: torch.nn.Module, dice: torch.Generator) -> dict[str, Any]:
    """Draw all parameters, biases too; return them."""
    with torch.no_grad():
        for each in module.parameters():
            each.normal_(0.0, 0.6, generator=dice)
    return parameters_in(module)


def _batch(form: NetworkShape, examples: int, longest: int, dice: torch.Generator) -> NetworkBatch:
    """Return random inputs; the places of items that are not there hold numbers too."""
    return NetworkBatch(
        torch.randn(examples, generator=dice),
        torch.randn(examples, form.vectors, form.dimensions, generator=dice),
        torch.randn(examples, longest, form.dimensions, generator=dice),
        torch.rand(examples, longest, generator=dice) < 0.5,
    )


def _expected(
    architecture: str, parameters: dict[str, Any], batch: NetworkBatch, form: NetworkShape
) -> list[float]:
    answers = []
    for i in range(batch.wide.shape[0]):
        there = batch.items[i][batch.present[i]].tolist()
        given = Inputs(float(batch.wide[i]), batch.vectors[i].tolist(), there, form.target)
        answers.append(ARCHITECTURES[architecture](parameters, given))
    return answers


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.vectors}x{form.dimensions}")
@pytest.mark.parametrize(("examples", "longest"), [(7, 4), (1, 3), (1, 0), (5, 0), (0, 0)])
@pytest.mark.parametrize("architecture", MODULES)
def test_log_odds_are_what_the_papers_formulas_say(
    architecture: str, examples: int, longest: int, form: NetworkShape
) -> None:
    dice = torch.Generator().manual_seed(form.dimensions)
    module = MODULES[architecture](form)
    parameters = _dice(module, dice)
    batch = _batch(form, examples, longest, dice)
    with torch.no_grad():
        found = module(batch)
    assert found.shape == (examples,)
    expected = _expected(architecture, parameters, batch, form)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["din", "gru", "attention"])
def test_padding_of_a_history_does_not_change_the_answer(architecture: str) -> None:
    form, dice = FORMS[1], torch.Generator().manual_seed(3)
    module = MODULES[architecture](form)
    _dice(module, dice)
    batch = _batch(form, 2, 6, dice)
    present = torch.tensor([[False] * 6, [True, False, True, True, False, False]])
    elsewhere = batch.items + 5.0 * ~present.unsqueeze(2)
    cut = batch.items[:, :0], present[:, :0]
    with torch.no_grad():
        found = module(batch._replace(present=present))
        moved = module(batch._replace(items=elsewhere, present=present))
        without = module(NetworkBatch(batch.wide, batch.vectors, *cut))
    torch.testing.assert_close(moved, found, rtol=0.0, atol=0.0)
    torch.testing.assert_close(found[0], without[0])
    assert abs(found[1] - without[1]) > 0.01


@pytest.mark.parametrize("encoder", ["gru", "attention"])
def test_a_sequence_network_reads_the_latest_items_of_a_history(encoder: str) -> None:
    form, dice = FORMS[1], torch.Generator().manual_seed(4)
    module = SequenceNetwork(form, Structure("m", encoder=encoder, history_length=3))
    _dice(module, dice)
    batch = _batch(form, 4, 6, dice)
    present = torch.arange(6) < torch.tensor([[6], [4], [2], [0]])
    batch = batch._replace(present=present)
    items, counts = latest(batch, 3)
    assert counts.tolist() == [3, 3, 2, 0]
    torch.testing.assert_close(items[0], batch.items[0, 3:])
    torch.testing.assert_close(items[1], batch.items[1, 1:4])
    torch.testing.assert_close(items[2, :2], batch.items[2, :2])
    with torch.no_grad():
        found = module(batch)
        older = batch.items.clone()
        older[0, :3] += 5.0
        older[1, 0] += 5.0
        torch.testing.assert_close(module(batch._replace(items=older)), found)
        turned = batch.items.clone()
        turned[0, 3:], turned[1, 1:4] = batch.items[0, 3:].flip(0), batch.items[1, 1:4].flip(0)
        assert (module(batch._replace(items=turned)) - found).abs().max() > 1e-3, "order counts"
