"""Compiled optimizers compared with their papers' algorithms."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from headrace.learner.kernels.optimizers import gained_at, group_of, shrink_of, step_row
from headrace.learner.spec.optimizer_spec import ADAGRAD, ADAM, COIN, FTRL, SGD, Optimizer, floats
from tests.effort import examples
from tests.learner.kernels.slow_optimizers import DAY_S, Coordinate

GRADIENTS = st.lists(
    st.floats(-2.0, 2.0, width=32).filter(lambda g: g == 0 or abs(g) > 1e-3), min_size=2, max_size=2
)
STEPS = st.lists(st.tuples(GRADIENTS, st.integers(0, 2 * DAY_S)), min_size=1, max_size=40)
_START_S = 1_700_000_000


@njit
def _step(values, more, group, last_seen_s, now_s, gradients, out):  # type: ignore[no-untyped-def]
    shrink = shrink_of(group, last_seen_s, now_s)
    step_row(values, more, 1, group, shrink, gradients)
    for k in range(out.shape[0]):
        out[k] = gained_at(values[1], group, np.float32(1.0), k)


@njit
def _standing(values, group, last_seen_s, now_s, out):  # type: ignore[no-untyped-def]
    shrink = shrink_of(group, last_seen_s, now_s)
    for k in range(out.shape[0]):
        out[k] = gained_at(values[1], group, shrink, k)


class Row:
    """Two coordinates in the middle of a row, between others."""

    def __init__(self, optimizer: Optimizer) -> None:
        width = floats(optimizer, 2)
        self.group = group_of(optimizer, 3, 2)
        self.values = np.zeros((3, width + 5), np.float32)
        self.more = np.zeros_like(self.values)
        self.last_seen_s = 0

    def step(self, gradients: list[float], now_s: int) -> np.ndarray:
        """Step at this second; return what was gained so far."""
        out = np.zeros(2, np.float32)
        given = np.array(gradients, np.float32)
        _step(self.values, self.more, self.group, self.last_seen_s, now_s, given, out)
        self.last_seen_s = now_s
        return out

    def standing(self, now_s: int) -> np.ndarray:
        """The part of the deltas that remains at this second."""
        out = np.zeros(2, np.float32)
        _standing(self.values, self.group, self.last_seen_s, now_s, out)
        return out


@st.composite
def optimizers(draw: st.DrawFn) -> Optimizer:
    """Every kind, and constants."""
    return Optimizer(
        draw(st.sampled_from([SGD, ADAGRAD, FTRL, ADAM])),
        alpha=draw(st.floats(0.01, 0.5)),
        beta=draw(st.floats(0.1, 5.0)),
        l1=draw(st.floats(0.0, 2.0)),
        l2=draw(st.floats(0.0, 5.0)),
        epsilon=draw(st.floats(1e-6, 1.0)),
        beta1=draw(st.floats(0.0, 0.95)),
        beta2=draw(st.floats(0.5, 0.999)),
        decay_per_day=draw(st.sampled_from([0.0, 0.1, 2.0])),
    )


@pytest.mark.thorough
@settings(max_examples=examples(150), deadline=None)
@given(optimizers(), STEPS)
def test_every_optimizer_step_equals_its_papers(
    optimizer: Optimizer, steps: list[tuple[list[float], int]]
) -> None:
    row, now_s = Row(optimizer), _START_S
    papers = [Coordinate(optimizer), Coordinate(optimizer)]
    for gradients, wait_s in steps:
        now_s += wait_s
        found = row.step(gradients, now_s)
        for paper, gradient in zip(papers, gradients, strict=True):
            if gradients is not steps[0][0]:
                paper.decay(wait_s)
            paper.step(float(np.float32(gradient)))
        expected = [paper.w for paper in papers]
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=2e-3)


@settings(max_examples=examples(100), deadline=None)
@given(optimizers(), STEPS)
def test_a_step_adds_the_same_to_the_view_and_to_what_is_pending_and_nothing_elsewhere(
    optimizer: Optimizer, steps: list[tuple[list[float], int]]
) -> None:
    adds_alike(optimizer, steps)


@settings(max_examples=examples(30), deadline=None)
@given(st.floats(0.01, 0.5), st.floats(0.1, 5.0), STEPS)
def test_a_bet_adds_the_same_to_the_view_and_to_what_is_pending_and_nothing_elsewhere(
    alpha: float, beta: float, steps: list[tuple[list[float], int]]
) -> None:
    adds_alike(Optimizer(COIN, alpha=alpha, beta=beta), steps)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.floats(0.01, 0.5),
    st.floats(0.5, 3.0),
    st.lists(st.floats(-4.0, 4.0, width=32), min_size=1, max_size=60),
)
def test_a_bet_is_the_papers_and_never_loses_more_than_there_is(
    alpha: float, beta: float, gradients: list[float]
) -> None:
    optimizer = Optimizer(COIN, alpha=alpha, beta=beta)
    row, paper, most = Row(optimizer), Coordinate(optimizer), alpha
    for gradient in gradients:
        found = row.step([gradient, 0.0], _START_S)
        paper.step(gradient)
        wealth = alpha + paper.v
        assert wealth > 0
        # what was lost of much is not known to the last digit of what is left
        most = max(most, wealth)
        close = 1e-4 * most * abs(paper.m) / (beta * (beta + paper.n)) + 1e-5 * (1 + most)
        assert abs(found[0] - paper.w) <= close + 1e-3 * abs(paper.w)
        assert found[1] == 0.0


def adds_alike(optimizer: Optimizer, steps: list[tuple[list[float], int]]) -> None:
    """Step, and compare what was added in the two places."""
    row, now_s = Row(optimizer), _START_S
    for gradients, wait_s in steps:
        now_s += wait_s
        row.step(gradients, now_s)
    np.testing.assert_array_equal(row.values, row.more)
    for untouched in (row.values[0], row.values[2], row.values[1, :3], row.values[1, -2:]):
        assert not untouched.any()


@pytest.mark.parametrize("name", [SGD, ADAGRAD, ADAM])
def test_decay_is_the_same_however_often_it_is_caught_up(name: str) -> None:
    optimizer = Optimizer(name, alpha=0.3, decay_per_day=0.7)
    once, often = Row(optimizer), Row(optimizer)
    for row in (once, often):
        row.step([1.0, -2.0], _START_S)
    for hour in range(1, 48):
        # a gradient of zero moves nothing but what is due: of Adam the mean would move it
        if name != ADAM:
            often.step([0.0, 0.0], _START_S + 3600 * hour)
    end_s = _START_S + 2 * DAY_S
    np.testing.assert_allclose(once.standing(end_s), often.standing(end_s), rtol=1e-5)
    left = once.standing(end_s) / once.standing(_START_S)
    np.testing.assert_allclose(left, math.exp(-1.4), rtol=1e-5)


def test_the_squares_of_adam_are_read_as_zero_below_it() -> None:
    row = Row(Optimizer(ADAM))
    row.step([1.0, 1.0], _START_S)
    row.values[1, 3 + 4 :][:2] = -0.5
    assert np.isfinite(row.step([0.1, 0.1], _START_S)).all()
