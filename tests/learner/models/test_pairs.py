"""The sum of all pairs and its gradient equal autograd's."""

from itertools import combinations

import pytest

pytest.importorskip("torch", reason="deep models are an extra: pip install headrace[deep]")

import torch
from torch import Tensor

from headrace.learner.models.deep.networks.pairwise import sum_of_pairs


def _by_definition(vectors: Tensor) -> Tensor:
    """Pairs of (n, vectors, d), at twice the precision."""
    rows = vectors.double().unbind(dim=1)
    made = torch.zeros(vectors.shape[0], dtype=torch.float64)
    for one, other in combinations(rows, 2):
        made = made + (one * other).sum(dim=1)
    return made


@pytest.mark.parametrize("shape", [(5, 7, 16), (3, 4, 19), (4, 3, 3), (6, 1, 8), (1, 2, 1)])
def test_pairs_and_their_gradient_are_by_definition(shape: tuple[int, int, int]) -> None:
    dice = torch.Generator().manual_seed(sum(shape))
    vectors, slopes = torch.randn(shape, generator=dice), torch.randn(shape[0], generator=dice)
    of_network = torch.randn(shape[0], shape[1] * shape[2], generator=dice)
    expected = _by_definition(vectors.requires_grad_())
    (gradient,) = torch.autograd.grad(
        (expected * slopes).sum() + (vectors.flatten(1) * of_network).sum(), vectors
    )

    pairs, flat = sum_of_pairs(vectors)

    torch.testing.assert_close(pairs, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(flat, vectors.flatten(1), rtol=0.0, atol=0.0)
    loss = torch.dot(pairs, slopes) + (flat * of_network).sum()
    (found,) = torch.autograd.grad(loss, vectors)
    torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-5)


def test_pairs_alone_or_vectors_alone_have_their_gradient() -> None:
    vectors = torch.randn((4, 3, 8), generator=torch.Generator().manual_seed(1), requires_grad=True)
    (expected,) = torch.autograd.grad(_by_definition(vectors).sum(), vectors)
    (found,) = torch.autograd.grad(sum_of_pairs(vectors)[0].sum(), vectors)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (found,) = torch.autograd.grad(sum_of_pairs(vectors)[1].sum(), vectors)
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0.0, atol=0.0)


def test_sums_of_pairs_take_strided_vectors_without_gradient() -> None:
    lying = torch.randn((3, 8, 4), generator=torch.Generator().manual_seed(2)).transpose(1, 2)
    with torch.inference_mode():
        pairs, flat = sum_of_pairs(lying)
    torch.testing.assert_close(pairs, _by_definition(lying).float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(flat, lying.flatten(1), rtol=0.0, atol=0.0)
