"""Learned weights of bag items: an item counts as much as its importance says.

With `learned_weights`, each row of an item has an importance u beside its weight and vector. With
the weights x0 of `pooling` and `decay` (learner.inputs.bag_weights), the weights of a bag's items
are

    e_k = x0_k exp(u_k),    x_k = e_k / sum_j e_j  (`mean`),    x_k = e_k / |e|  (`sqrt`)

With `mean` this is attention whose score depends on the item alone (Yang et al., "Hierarchical
Attention Networks for Document Classification", NAACL 2016, eq. (6), with a learned number in the
place of the score that its network computes). An importance begins at 0, so an untrained bag is
pooled as without learned weights. The same x weighs the linear part and the vectors.

Let q_k be x_k times the derivative of the loss by x_k. Then the derivative by u_k is

    q_k - x_k sum_j q_j  (`mean`),    q_k - x_k^2 sum_j q_j  (`sqrt`)

The optimizer of the weights steps the importances, without decay over time. *Refused:*
`pooling = "sum"`. Without a norm, e_k and the item's weight are one factor.
"""

import math

import numpy as np

from headrace.learner.kernels.optimizers import gained_at
from headrace.learner.kernels.row_values import MEAN_OF_LEARNED, NOT_LEARNED
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@inlined_ieee_division
def _normalize(x, kind, begin, end):  # type: ignore[no-untyped-def]
    """Divide the values of inputs [begin, end) by their sum, or by their length."""
    total = _ZERO
    for k in range(begin, end):
        total += x[k] if kind == MEAN_OF_LEARNED else x[k] * x[k]
    if kind != MEAN_OF_LEARNED:
        total = np.float32(math.sqrt(total))
    if total > _ZERO:
        for k in range(begin, end):
            x[k] /= total


@inlined
def weigh_items(values, parameters, features, i, reads, scratch, row):  # type: ignore[no-untyped-def]
    """Give the items of example i the weights that their rows have learned, in the scratch.

    values: of the view. reads: (inputs,) places of the rows that the example is predicted from.
    Call it once for each listed example: it replaces the weights of `pooling` and `decay`.
    """
    poolings, offsets = parameters.poolings, features.bag_offsets
    bags = poolings.shape[0]
    for b in range(bags):
        if poolings[b] == NOT_LEARNED:
            continue
        x, importance = scratch.x[row], scratch.weights
        first = 1 + features.ids.shape[1] + features.number_ids.shape[0] - offsets[i * bags]
        begin, end = first + offsets[i * bags + b], first + offsets[i * bags + b + 1]
        largest = np.float32(-np.inf)
        for k in range(begin, end):
            importance[k] = _ZERO
            if reads[k] >= 0:
                importance[k] = gained_at(row_of(values, reads[k]), parameters.items, _ONE, 0)
            largest = max(largest, importance[k])
        for k in range(begin, end):
            x[k] *= np.float32(math.exp(importance[k] - largest))
        _normalize(x, poolings[b], begin, end)


@inlined
def slope_items(pooling, x, q, begin, end):  # type: ignore[no-untyped-def]
    """Turn q of items [begin, end) of one bag into the derivatives of the loss by importances."""
    total = _ZERO
    for k in range(begin, end):
        total += q[k]
    for k in range(begin, end):
        share = x[k] if pooling == MEAN_OF_LEARNED else x[k] * x[k]
        q[k] -= share * total
