"""FTRL-Proximal, compiled, compared with the algorithm as the paper prints it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from headrace.learner.kernels.ftrl import constants, step, weight
from tests.effort import examples

REALS = st.floats(-2.0, 2.0, width=32)


class PaperCoordinate:
    """McMahan et al. 2013, Algorithm 1, for a single coordinate, in double precision."""

    def __init__(self, alpha: float, beta: float, l1: float, l2: float) -> None:
        self.alpha, self.beta, self.l1, self.l2 = alpha, beta, l1, l2
        self.z = self.n = 0.0

    @property
    def w(self) -> float:
        """The closed form of the minimum."""
        if abs(self.z) <= self.l1:
            return 0.0
        return -(self.z - math.copysign(self.l1, self.z)) / (
            (self.beta + math.sqrt(self.n)) / self.alpha + self.l2
        )

    def update(self, g: float) -> None:
        """Lines 8 to 10."""
        sigma = (math.sqrt(self.n + g * g) - math.sqrt(self.n)) / self.alpha
        self.z, self.n = self.z + g - sigma * self.w, self.n + g * g


@njit
def _weigh(z, root_n, ftrl):  # type: ignore[no-untyped-def]
    return weight(z, root_n, ftrl)


@njit
def _run(gradients, ftrl, trace):  # type: ignore[no-untyped-def]
    z = n = np.float32(0.0)
    for i in range(gradients.shape[0]):
        root_n = np.float32(math.sqrt(n))
        w = weight(z, root_n, ftrl)
        z_gain, n_gain = step(gradients[i], w, n, root_n, ftrl)
        z += z_gain
        n += n_gain
        trace[i, 0], trace[i, 1] = z, n
        trace[i, 2] = weight(z, np.float32(math.sqrt(n)), ftrl)


def _trace(gradients: list[float], ftrl: tuple[float, float, float, float]) -> np.ndarray:
    trace = np.zeros((len(gradients), 3), np.float32)
    _run(np.array(gradients, np.float32), constants(*ftrl), trace)
    return trace


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(REALS, min_size=1, max_size=60),
    st.floats(0.01, 1.0),
    st.floats(0.1, 5.0),
    st.floats(0.0, 2.0),
    st.floats(0.0, 5.0),
)
def test_every_ftrl_step_equals_the_papers(
    gradients: list[float], alpha: float, beta: float, l1: float, l2: float
) -> None:
    trace = _trace(gradients, (alpha, beta, l1, l2))
    paper = PaperCoordinate(alpha, beta, l1, l2)
    for i, gradient in enumerate(gradients):
        paper.update(gradient)
        np.testing.assert_allclose(trace[i, :2], (paper.z, paper.n), rtol=1e-3, atol=1e-3)
        assert trace[i, 2] == pytest.approx(paper.w, rel=1e-2, abs=1e-3)


@settings(max_examples=examples(200), deadline=None)
@given(st.floats(0.0, 3.0, width=32), st.floats(-3.0, 3.0, width=32), st.floats(0, 9.0, width=32))
def test_the_weight_is_exactly_zero_up_to_l1_and_opposes_z_beyond(
    l1: float, z: float, n: float
) -> None:
    found = _weigh(np.float32(z), np.float32(math.sqrt(n)), constants(0.1, 1.0, l1, 1.0))
    if abs(np.float32(z)) <= np.float32(l1):
        assert found == 0.0
    else:
        assert found * z <= 0.0


def test_a_weight_returns_to_exact_zero() -> None:
    ftrl = (0.1, 1.0, 0.5, 1.0)
    away = _trace([1.0, 1.0], ftrl)
    assert away[-1, 2] < 0.0
    back = _trace([1.0, 1.0, -0.5, -0.5, -0.5, -0.5], ftrl)
    assert 0.0 in back[:, 2]
