"""Vectors of eight floats give the same bits as single numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.errors import TypingError

from headrace.learner.intrinsics.simd import (
    LANES,
    absolute,
    add,
    chosen,
    eight,
    float_of,
    numbered,
    put,
    root,
    take,
    with_sign,
)
from headrace.learner.kernels.optimizers import begin_step, gained_at, group_of, step_at, step_row
from headrace.learner.spec.optimizer_spec import ADAGRAD, ADAM, COIN, FTRL, SGD, Optimizer, floats
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, inlined_ieee_division, kernel
from tests.effort import examples

FLOATS = st.floats(-1e3, 1e3, width=32)
ARRAYS = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=40)
_TWO = np.float32(2.0)


@inlined_ieee_division
def _work_out(x, y, made, at):  # type: ignore[no-untyped-def]
    one, other = take(x, 0, at), take(y, 0, at)
    ratio = _TWO * root(absolute(one)) / (other + np.float32(0.5)) - one
    ratio = chosen(one > other, -ratio, np.float32(3.0))
    put(made, 0, at, with_sign(ratio, other) + _TWO)
    add(made, 0, at, chosen(np.float32(1.0) > other, np.float32(1.0), other))


@inlined
def _draw(word, made, at):  # type: ignore[no-untyped-def]
    bits = numbered(word, np.uint64(0x9E3779B97F4A7C15), at)
    bits ^= bits >> np.uint64(33)
    put(made, 0, at, float_of((bits * np.uint64(0xFF51AFD7ED558CCD)) >> np.uint64(40)))


@kernel
def _eights(x, y, word, made, drawn):  # type: ignore[no-untyped-def]
    whole = x.shape[0] - x.shape[0] % LANES
    for k in range(0, whole, LANES):
        _work_out(x, y, made, eight(k))
        _draw(word, drawn, eight(k))
    for k in range(whole, x.shape[0]):
        _work_out(x, y, made, k)
        _draw(word, drawn, k)


@kernel
def _ones(x, y, word, made, drawn):  # type: ignore[no-untyped-def]
    for k in range(x.shape[0]):
        _work_out(x, y, made, k)
        _draw(word, drawn, k)


@settings(max_examples=examples(200), deadline=None)
@given(ARRAYS, st.integers(0, 2**64 - 1))
def test_vectors_of_eight_give_the_bits_of_single_numbers(
    pairs: list[tuple[float, float]], word: int
) -> None:
    x, y = (np.array(each, np.float32) for each in zip(*pairs, strict=True))
    found = [np.zeros((2, x.shape[0]), np.float32) for _ in range(2)]
    for work, made in zip((_eights, _ones), found, strict=True):
        work(x, y, np.uint64(word), made[0], made[1])
    np.testing.assert_array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


def test_initial_values_are_drawn_from_24_bits() -> None:
    word, made = 0x123456789ABCDEF0, np.zeros((2, 11), np.float32)
    _eights(made[0], made[0], np.uint64(word), np.zeros(11, np.float32), made[1])
    expected = []
    for k in range(11):
        bits = (word + k * 0x9E3779B97F4A7C15) % 2**64
        expected.append(((bits ^ bits >> 33) * 0xFF51AFD7ED558CCD) % 2**64 >> 40)
    assert made[1].tolist() == expected


@kernel
def _take_column(x, made):  # type: ignore[no-untyped-def]
    put(made, 0, eight(0), take(x, 0, eight(0)))


def test_a_strided_array_cannot_be_loaded_as_a_vector() -> None:
    with pytest.raises(TypingError, match="one row of neighbours"):
        _take_column(np.zeros((8, 2), np.float32)[:, 0], np.zeros(8, np.float32))


@kernel
def _widen(x, made):  # type: ignore[no-untyped-def]
    put(made, 0, eight(0), take(x, 0, eight(0)) * 0.5)


def test_a_vector_times_a_wider_number_is_refused() -> None:
    with pytest.raises(TypingError, match="mul"):
        _widen(np.zeros(8, np.float32), np.zeros(8, np.float32))


@kernel
def _step_one_by_one(values, more, group, shrink, gradients, gained):  # type: ignore[no-untyped-def]
    row, more_row = row_of(values, 1), row_of(more, 1)
    parts = begin_step(row, more_row, group)
    for k in range(gradients.shape[0]):
        step_at(row, more_row, group, shrink, parts, k, gradients[k])
        gained[k] = gained_at(row, group, shrink, k)


@kernel
def _step_all(values, more, group, shrink, gradients, gained):  # type: ignore[no-untyped-def]
    step_row(values, more, 1, group, shrink, gradients)
    row, whole = row_of(values, 1), gradients.shape[0] - gradients.shape[0] % LANES
    for k in range(0, whole, LANES):
        put(gained, 0, eight(k), gained_at(row, group, shrink, eight(k)))
    for k in range(whole, gradients.shape[0]):
        gained[k] = gained_at(row, group, shrink, k)


@pytest.mark.parametrize("name", [SGD, ADAGRAD, FTRL, ADAM, COIN])
@pytest.mark.parametrize("coordinates", [1, 7, 8, 16, 21])
def test_optimizers_step_eight_coordinates_as_they_step_each(name: str, coordinates: int) -> None:
    optimizer, random = Optimizer(name, alpha=0.1, l1=0.2, decay_per_day=0.3), _random(coordinates)
    if name in (FTRL, COIN):
        optimizer = Optimizer(name, alpha=0.1, l1=0.2)
    group = group_of(optimizer, 3, coordinates)
    width = 3 + floats(optimizer, coordinates) + 2
    tables = [np.zeros((4, 3, width), np.float32) for _ in range(2)]
    for _ in range(20):
        gradients = random.normal(size=coordinates).astype(np.float32)
        for step, table in zip((_step_one_by_one, _step_all), tables, strict=True):
            taken, gained = gradients.copy(), table[2, 1, :coordinates]
            step(table[0], table[1], group, np.float32(0.9), taken, gained)
        np.testing.assert_array_equal(tables[0].view(np.uint32), tables[1].view(np.uint32))
    assert tables[0][0, 1, 3:-2].any()
    assert not tables[0][0, 1, :3].any()
    assert not tables[0][0, 1, -2:].any()


@pytest.mark.parametrize(
    ("name", "bad"),
    # no infinity for a bet: it is no larger than it may be, however steep the loss
    [(COIN, np.nan)]
    + [(each, bad) for each in (SGD, ADAGRAD, FTRL, ADAM) for bad in (np.nan, np.inf)],
)
@pytest.mark.parametrize("spoiled", [0, 7, 8, 10])
def test_a_nan_or_infinite_gradient_shows_in_pending_deltas_where_it_was(
    name: str, spoiled: int, bad: float
) -> None:
    """By who looks at deltas before a push; and only there where it was."""
    group, coordinates = group_of(Optimizer(name), 0, 11), 11
    table = np.zeros((3, 2, floats(Optimizer(name), coordinates)), np.float32)
    gradients = np.full(coordinates, 0.5, np.float32)
    gradients[spoiled] = bad
    one = np.float32(1.0)
    _step_all(table[0], table[1], group, one, gradients, table[2, 1, :coordinates])
    components = table[1, 1][: coordinates * (table.shape[2] // coordinates)]
    finite = np.isfinite(components.reshape(-1, coordinates)).all(axis=0)
    assert np.flatnonzero(~finite).tolist() == [spoiled]


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
