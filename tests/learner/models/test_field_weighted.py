"""The field-weighted machine's log-odds equal the paper's sum over pairs of fields."""

from itertools import combinations

import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch

from headrace.learner.models.deep.networks.architectures import FieldWeightedFM
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape


@pytest.mark.parametrize("fields", [1, 2, 5])
def test_log_odds_and_gradients_are_by_definition(fields: int) -> None:
    dice = torch.Generator().manual_seed(fields)
    module = FieldWeightedFM(NetworkShape(fields, 3, (), 0, -1))
    with torch.no_grad():
        module.strength.normal_(generator=dice)
    vectors = torch.randn(4, fields, 3, generator=dice).requires_grad_()
    wide = torch.randn(4, generator=dice).requires_grad_()
    slopes = torch.randn(4, generator=dice)
    expected = wide
    for strength, (i, j) in zip(module.strength, combinations(range(fields), 2), strict=True):
        expected = expected + (vectors[:, i] * vectors[:, j]).sum(dim=1) * (1.0 + strength)

    none, present = torch.zeros(4, 0, 3), torch.zeros(4, 0, dtype=torch.bool)
    found = module(NetworkBatch(wide, vectors, none, present))

    torch.testing.assert_close(found, expected)
    leaves = [wide, vectors, module.strength]
    made, wanted = (
        torch.autograd.grad(torch.dot(each, slopes), leaves, materialize_grads=True)
        for each in (found, expected)
    )
    torch.testing.assert_close(made, wanted)
