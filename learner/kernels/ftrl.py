"""FTRL-Proximal, one coordinate at a time, written so that a step only adds.

A row holds z and n. The weight is computed from them when it is needed (McMahan et al., "Ad Click
Prediction: a View from the Trenches", KDD 2013, Algorithm 1), so two learners that step the same
row at once only add: neither overwrites the other's step, which is computed from a slightly older
weight.

The learning rate of a coordinate falls with its data: alpha / (beta + sqrt(n)), where n is the sum
of its squared gradients. There is no other schedule. `models/logistic_kernels` steps rows of
logistic regression with these functions, and `optimizers` those of all other models.
"""

from typing import NamedTuple

import numpy as np

from headrace.learner.intrinsics.simd import absolute, chosen, root, with_sign
from headrace.runtime.kernels.numba_kernels import inlined_ieee_division

_ZERO = np.float32(0.0)


class FtrlConstants(NamedTuple):
    """The optimizer's constants, as kernels take them, in the precision of rows."""

    inverse_alpha: np.float32
    beta: np.float32
    l1: np.float32
    l2: np.float32
    offset: float
    """Log-odds of an example before anything is learned."""


def constants(
    alpha: float, beta: float, l1: float, l2: float, offset: float = 0.0
) -> FtrlConstants:
    """Return the constants of Algorithm 1, `alpha` inverted: a product is cheaper than a ratio."""
    inverse_alpha = np.float32(1.0 / alpha)
    return FtrlConstants(inverse_alpha, np.float32(beta), np.float32(l1), np.float32(l2), offset)


@inlined_ieee_division
def weight(z, root_n, ftrl):  # type: ignore[no-untyped-def]
    """Return the weight of a coordinate, or of eight, given sqrt(n): exactly 0 where |z| <= l1.

    The closed form for w in Algorithm 1; (beta + sqrt n) / alpha is 1 / learning rate. Compiled.
    """
    shrunk = absolute(z) - ftrl.l1
    scale = (ftrl.beta + root_n) * ftrl.inverse_alpha + ftrl.l2
    return chosen(shrunk > _ZERO, -with_sign(shrunk, z) / scale, _ZERO)


@inlined_ieee_division
def step(gradient, coordinate_weight, n, root_n, ftrl):  # type: ignore[no-untyped-def]
    """Return what z and n of a coordinate, or of eight, gain from one gradient. Compiled.

    sigma = (sqrt(n + g^2) - sqrt(n)) / alpha;  z += g - sigma w;  n += g^2   (Algorithm 1)
    """
    more = gradient * gradient
    sigma = (root(n + more) - root_n) * ftrl.inverse_alpha
    return gradient - sigma * coordinate_weight, more
