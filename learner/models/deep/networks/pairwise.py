"""All pairs of an example's vectors, for torch: the second-order term of a factorization machine.

Rendle, "Factorization Machines", ICDM 2010. The sum of all products <v_i, v_j>, i < j, is half of
|sum v|^2 - sum |v|^2 (lemma 3.1), and its gradient by v_i is the sum of all other vectors. Written
with torch's operators, that is some ten passes over the vectors of a mini-batch, forward and
backward, most of them with memory of their own. Here it is one pass forward, and one backward.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.learner.intrinsics.simd import LANES, eight, put, take
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, kernel

_HALF, _ZERO = np.float32(0.5), np.float32(0.0)


def sum_of_pairs(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of pairs, (n,) of (n, vectors, d), and the same vectors concatenated,
    (n, vectors * d), for a network that shares them.

    Both come from one function so that both gradients are added in one pass (on the CPU).
    """
    if vectors.device.type != "cpu":
        totals, squares = vectors.sum(dim=1), (vectors * vectors).sum(dim=1)
        return 0.5 * (totals * totals - squares).sum(dim=1), vectors.flatten(1)
    out: tuple[Tensor, Tensor] = _SumOfPairs.apply(vectors)  # type: ignore[no-untyped-call]
    return out


class _SumOfPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> tuple[Tensor, Tensor]:
        count, each, dimensions = vectors.shape
        rows, pairs = vectors.contiguous().view(-1, dimensions), np.empty(count, np.float32)
        totals = np.empty((count, dimensions), np.float32)
        work = np.empty(dimensions, np.float32)
        add_pairs(rows.detach().numpy(), each, totals, work, pairs)
        ctx.save_for_backward(rows)
        ctx.each, ctx.totals = each, totals
        return torch.from_numpy(pairs), vectors.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        (rows,), by_pairs = ctx.saved_tensors, slopes[0].contiguous().numpy()
        others = slopes[1].contiguous().view_as(rows).numpy()
        out = torch.empty_like(rows)
        slope_pairs(rows.numpy(), ctx.each, ctx.totals, by_pairs, others, out.numpy())
        return out.view(-1, ctx.each, rows.shape[1])


@inlined
def _add_vectors(vectors, begin, end, total, doubled, at):  # type: ignore[no-untyped-def]
    """Write the sum of vectors, and that of each one's products with all others."""
    vector = take(row_of(vectors, begin), 0, at)
    sums, squares = vector, vector * vector
    for k in range(begin + 1, end):
        vector = take(row_of(vectors, k), 0, at)
        sums += vector
        squares += vector * vector
    put(total, 0, at, sums)
    put(doubled, 0, at, sums * sums - squares)


@kernel
def add_pairs(vectors, each, totals, doubled, out):  # type: ignore[no-untyped-def]
    """Write what examples of so many vectors `each` have of pairs, and the sums of their vectors.

    doubled: (d,) working memory.
    """
    dimensions = vectors.shape[1]
    whole = dimensions - dimensions % LANES
    for i in range(out.shape[0]):
        begin, end, total, pairs = i * each, (i + 1) * each, row_of(totals, i), _ZERO
        for f in range(0, whole, LANES):
            _add_vectors(vectors, begin, end, total, doubled, eight(f))
        for f in range(whole, dimensions):
            _add_vectors(vectors, begin, end, total, doubled, f)
        for f in range(dimensions):
            pairs += doubled[f]
        out[i] = _HALF * pairs


@inlined
def _slope_vectors(vectors, begin, end, total, slope, others, out, at):  # type: ignore[no-untyped-def]
    sums = take(total, 0, at)
    for k in range(begin, end):
        by_pairs = slope * (sums - take(row_of(vectors, k), 0, at))
        put(row_of(out, k), 0, at, take(row_of(others, k), 0, at) + by_pairs)


@kernel
def slope_pairs(vectors, each, totals, slopes, others, out):  # type: ignore[no-untyped-def]
    """Write the gradient by every vector: a slope times the sum of the example's other vectors, and
    what it has from elsewhere (`others`, which may be `out`).
    """
    dimensions = vectors.shape[1]
    whole = dimensions - dimensions % LANES
    for i in range(slopes.shape[0]):
        begin, end, total, slope = i * each, (i + 1) * each, row_of(totals, i), slopes[i]
        for f in range(0, whole, LANES):
            _slope_vectors(vectors, begin, end, total, slope, others, out, eight(f))
        for f in range(whole, dimensions):
            _slope_vectors(vectors, begin, end, total, slope, others, out, f)
