"""Tests CachedDispatch, which examines the types of a kernel's arguments once."""

import gc
import weakref
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.runtime.kernels.numba_kernels import CachedDispatch, kernel


class Pair(NamedTuple):
    left: npt.NDArray[Any]
    right: npt.NDArray[Any]


@kernel
def add_up(pair, total):  # type: ignore[no-untyped-def]
    """Write the sum of both arrays to `total`."""
    total[0] = 0.0
    for i in range(pair.left.shape[0]):
        total[0] += pair.left[i] + 10.0 * pair.right[i]


def added(settled: CachedDispatch, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> float:
    total = np.empty(1)
    settled(left, Pair(left, right), total)
    return float(total[0])


def test_a_cached_dispatch_computes_what_the_kernel_computes() -> None:
    settled, left = CachedDispatch(add_up), np.arange(4.0)
    for scale in range(5):
        assert added(settled, left, np.full(4, float(scale))) == 6.0 + 40.0 * scale


def test_a_cached_dispatch_follows_the_types_of_a_new_lasting_object() -> None:
    settled = CachedDispatch(add_up)
    for left, right in (
        (np.arange(4.0), np.ones(4)),
        (np.arange(8.0)[::2], np.ones(8)[::2]),  # strided: another layout
        (np.arange(4.0), np.ones(8)[::2]),
        (np.arange(4, dtype=np.int64), np.ones(4)),
    ):
        for _ in range(4):
            assert added(settled, left, right) == left.sum() + 40.0


def test_a_cached_dispatch_serves_alternating_lasting_objects() -> None:
    settled, whole, strided = CachedDispatch(add_up), np.arange(4.0), np.arange(8.0)[::2]
    for _ in range(4):
        for left in (whole, strided, strided):
            assert added(settled, left, np.zeros(4)) == left.sum()


def test_a_cached_dispatch_does_not_keep_its_lasting_object_alive() -> None:
    settled, left = CachedDispatch(add_up), np.arange(4.0)
    for _ in range(3):
        added(settled, left, np.ones(4))
    gone = weakref.ref(left)
    del left
    gc.collect()
    assert gone() is None
