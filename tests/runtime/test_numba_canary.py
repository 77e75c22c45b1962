"""Checks the internals of numba that `runtime.kernels.numba_kernels` relies on.

pyproject.toml pins numba and llvmlite to a minor version. If one of these tests fails after an
update, read the numba change before you move the pin; `njit(cache=True, nogil=True)` is the plain
fallback.
"""

from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.options import DefaultOptions

from headrace.runtime.kernels import numba_kernels
from headrace.runtime.kernels.numba_kernels import inlined, kernel

OPTIONS = ("nogil", "_nrt", "no_cfunc_wrapper", "no_cpython_wrapper", "forceinline", "error_model")


@inlined
def doubled(values, i):  # type: ignore[no-untyped-def]
    """Return twice the value at `i`."""
    return 2.0 * values[i]


@kernel
def sum_doubled(values, total):  # type: ignore[no-untyped-def]
    """Write twice the sum of `values` to `total`."""
    total[0] = 0.0
    for i in range(values.shape[0]):
        total[0] += doubled(values, i)


@njit
def counted(values):  # type: ignore[no-untyped-def]
    """Return a view, so that numba counts the references to its memory."""
    return values[1:]


def code_of(function: Any, *arguments: object) -> str:
    """Return the LLVM code of a kernel for these arguments.

    Compiled without the cache, because numba cannot show the code of cached kernels.
    """
    compiled = njit(**numba_kernels._BARE)(function.py_func)
    compiled(*arguments)
    return str(next(iter(compiled.inspect_llvm().values())))


@pytest.mark.parametrize("name", OPTIONS)
def test_numba_still_has_the_option_that_kernels_are_compiled_with(name: str) -> None:
    assert hasattr(DefaultOptions, name), (
        f"expected numba to have the option {name}, got none: numba_kernels compiles with it"
    )


def test_a_kernel_computes_without_reference_counts() -> None:
    values, total = np.arange(5.0), np.zeros(1)
    sum_doubled(values, total)
    assert total[0] == 20.0
    code = code_of(sum_doubled, values, total)
    counted(values)
    assert "NRT_incref" in str(next(iter(counted.inspect_llvm().values()))), (
        "expected numba to count references with NRT_incref, got another name: this canary "
        "checks nothing"
    )
    assert "NRT_incref" not in code, (
        "expected a kernel without reference counts, got NRT_incref: numba ignores the option _nrt"
    )


def test_an_inlined_function_leaves_no_call_in_its_kernel() -> None:
    code = code_of(sum_doubled, np.arange(5.0), np.zeros(1))
    calls = [line for line in code.splitlines() if "call" in line and "doubled" in line]
    assert not [line for line in calls if "sum_doubled" not in line], (
        "expected forceinline to inline, got a call: kernels would copy their arrays"
    )


def test_an_inlined_function_called_from_python_raises_an_error() -> None:
    with pytest.raises(TypeError, match="expected doubled to be called from a kernel"):
        doubled(np.arange(5.0), 0)


def test_a_dispatcher_returns_an_entry_point_for_the_types_of_its_arguments() -> None:
    values, total = np.arange(5.0), np.zeros(1)
    for name in ("compile", "typeof_pyval"):
        assert callable(getattr(sum_doubled, name, None)), (
            f"expected numba's dispatcher to have {name}, got none: CachedDispatch calls it"
        )
    entry = sum_doubled.compile(tuple(map(sum_doubled.typeof_pyval, (values, total))))
    entry(values, total)
    assert total[0] == 20.0
