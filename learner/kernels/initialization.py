"""The initial value of an embedding: a function of the row's id, the same everywhere, never stored.

A row holds what was gained; its value is the initial value plus that. So a missing row and one that
gained nothing are the same, and a push carries only deltas.
"""

import math

import numpy as np

from headrace.learner.intrinsics.simd import float_of, numbered
from headrace.learner.kernels.row_ids import mix
from headrace.runtime.kernels.numba_kernels import inlined

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.float32(2.0**-23)
_ONE = np.float32(1.0)


@inlined
def origin(row_id, seed):  # type: ignore[no-untyped-def]
    """Return the state from which all initial coordinates of a row are drawn. Compiled."""
    return mix(row_id ^ (seed * _GOLDEN))


@inlined
def initial(begun, at, bound):  # type: ignore[no-untyped-def]
    """Return the initial value of coordinates of a row, uniform in [-bound, bound). Compiled.

    begun: the row's `origin`. at: which coordinates (learner.intrinsics.simd).
    """
    word = mix(numbered(begun + _GOLDEN, _GOLDEN, at))
    # 24 bits, less one: exact in a float32
    return (float_of(word >> np.uint64(40)) * _STEP - _ONE) * np.float32(bound)


def bound_of(scale: float) -> float:
    """Return the bound of a uniform distribution around zero that has this standard deviation."""
    return scale * math.sqrt(3.0)
