"""A canary for each intrinsic: what breaks first when numba or llvmlite change underneath."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
from headrace.learner.intrinsics.simd_rows import add_two, raise_four
from headrace.runtime.kernels.numba_kernels import kernel

X = np.array([4.0, -9.0, 0.25, -0.0, 1.0, -2.0, 16.0, 3.0], np.float32)
Y = np.array([1.0, -1.0, 2.0, -2.0, -3.0, 3.0, -4.0, 4.0], np.float32)


@kernel
def _take_and_put(x, y, made):  # type: ignore[no-untyped-def]
    put(made, 0, eight(0), take(x, 0, eight(0)))


@kernel
def _add(x, y, made):  # type: ignore[no-untyped-def]
    put(made, 0, eight(0), take(x, 0, eight(0)))
    add(made, 0, eight(0), take(y, 0, eight(0)))


@kernel
def _root_of_absolute(x, y, made):  # type: ignore[no-untyped-def]
    put(made, 0, eight(0), root(absolute(take(x, 0, eight(0)))))


@kernel
def _with_sign(x, y, made):  # type: ignore[no-untyped-def]
    put(made, 0, eight(0), with_sign(take(x, 0, eight(0)), take(y, 0, eight(0))))


@kernel
def _chosen(x, y, made):  # type: ignore[no-untyped-def]
    one, other = take(x, 0, eight(0)), take(y, 0, eight(0))
    put(made, 0, eight(0), chosen(one > other, one, other))


@kernel
def _arithmetic(x, y, made):  # type: ignore[no-untyped-def]
    one, other = take(x, 0, eight(0)), take(y, 0, eight(0))
    put(made, 0, eight(0), -(one * other - one) / other + one)


@kernel
def _numbered(x, y, made):  # type: ignore[no-untyped-def]
    numbers = numbered(np.uint64(1000), np.uint64(3), eight(0))
    put(made, 0, eight(0), float_of(numbers >> np.uint64(1)))


CANARIES: list[tuple[str, Callable[..., Any], Any]] = [
    ("take, put and eight", _take_and_put, X),
    ("add", _add, X + Y),
    ("root and absolute", _root_of_absolute, np.sqrt(np.abs(X))),
    ("with_sign", _with_sign, np.copysign(X, Y)),
    ("chosen", _chosen, np.maximum(X, Y)),
    ("the operators", _arithmetic, -(X * Y - X) / Y + X),
    ("numbered and float_of", _numbered, (1000 + 3 * np.arange(8)) // 2),
]


@pytest.mark.parametrize(("name", "work", "expected"), CANARIES, ids=[c[0] for c in CANARIES])
def test_an_intrinsic_of_eight_lanes_does_what_numpy_does(
    name: str, work: Callable[..., Any], expected: Any
) -> None:
    assert X.shape[0] == LANES
    made = np.zeros(LANES, np.float32)
    work(X, Y, made)
    np.testing.assert_array_equal(
        made, np.asarray(expected, np.float32), err_msg=_broken("learner/intrinsics/simd.py", name)
    )


@kernel
def _add_two(column, place):  # type: ignore[no-untyped-def]
    add_two(column, place, np.uint64(5), np.uint64(7))


@kernel
def _raise_four(column, place):  # type: ignore[no-untyped-def]
    one, two, most, least = np.uint32(1), np.uint32(2), np.uint32(30), np.uint32(3)
    return raise_four(column, place, one, two, most, least)


def test_add_two_adds_to_a_number_of_a_row_and_to_its_neighbour() -> None:
    rows = np.arange(9, dtype=np.uint64).reshape(3, 3)
    _add_two(rows[:, 0], 1)
    expected = [[0, 1, 2], [3 + 5, 4 + 7, 5], [6, 7, 8]]
    message = _broken("learner/intrinsics/simd_rows.py", "add_two")
    np.testing.assert_array_equal(rows, expected, err_msg=message)


def test_raise_four_adds_two_numbers_and_raises_two() -> None:
    rows = np.array([[9, 9, 9, 9, 9], [10, 20, 7, 8, 9]], np.uint32)
    before = _raise_four(rows[:, 0], 1)
    message = _broken("learner/intrinsics/simd_rows.py", "raise_four")
    np.testing.assert_array_equal(rows[1], [11, 22, 30, 8, 9], err_msg=message)
    np.testing.assert_array_equal(rows[0], 9, err_msg=message)
    assert before == 7, message


def _broken(file: str, intrinsic: str) -> str:
    import llvmlite  # type: ignore[import-untyped]
    import numba

    return (
        f"{file}: {intrinsic} no longer compiles to what it says, with numba {numba.__version__} "
        f"and llvmlite {llvmlite.__version__}. Compare the module's paragraph on numba's internals "
        "with that version, or pin the version before it."
    )
