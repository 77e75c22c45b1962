"""Compiles kernels with numba, without the parts of its default output that headrace never uses.

Why: numba counts references to every array that passes through a call. A kernel that takes its
arrays from the caller, allocates none and keeps none does not need that. With some forty arrays in
a tuple, the counting took nine tenths of the joiner's time. In return a kernel must not allocate,
nor assign a whole array to a part of another. numba also wraps every function for calls from Python
and from C. Kernels are called from Python only, and inlined functions from kernels only. Without
the other wrappers, and without cache files for inlined functions, a fresh clone compiles in half
the time.

It reaches into the undocumented option `_nrt` (numba's own sorting kernels use it), the options
`no_cfunc_wrapper`, `no_cpython_wrapper` and `forceinline`, the class `CPUDispatcher`, and its
methods `compile` and `typeof_pyval`. So pyproject.toml pins the minor versions of numba and
llvmlite, and `tests/runtime/test_numba_canary.py` fails if one of them changes. The plain
fallback is `njit(cache=True, nogil=True)`, with the same results, but slower.
"""

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.registry import CPUDispatcher

from headrace.runtime.kernels.kernel_cache import compiled_and_kept

Function = Callable[..., Any]

_BARE: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}


class _InlinedDispatcher(CPUDispatcher):
    """A function without a wrapper for Python; calling it from there would crash the process."""

    def __call__(self, *_arguments: object, **_more: object) -> NoReturn:
        name = self.py_func.__qualname__
        raise TypeError(f"expected {name} to be called from a kernel, got a call from Python")


def kernel(function: Function) -> Any:
    """Compile a function that only reads and writes the arrays passed to it."""
    return compiled_and_kept(**_BARE)(function)


counted_kernel: Any = compiled_and_kept(nogil=True)
"""Compiles a kernel with reference counting, for kernels that take records out of arrays."""


def inlined(function: Function) -> Any:
    """Compile a function that is inlined into kernels; only kernels can call it.

    A call would copy the arguments, and an array is seven words.
    """
    return _inlined(function)


def inlined_ieee_division(function: Function) -> Any:
    """Compile an inlined function that divides as arrays do: by zero gives infinity, unchecked."""
    return _inlined(function, error_model="numpy")


def _inlined(function: Function, **options: object) -> Any:
    compiled = njit(forceinline=True, no_cpython_wrapper=True, **_BARE, **options)(function)  # type: ignore[call-overload]
    compiled.__class__ = _InlinedDispatcher
    return compiled


def read_only(array: npt.NDArray, dtype: type) -> npt.NDArray:
    """Return the array with the one type that kernels are compiled for.

    Arrays over messages are read-only and perhaps unaligned, arrays of tests or servers are not.
    """
    flags = array.flags
    if array.dtype is np.dtype(dtype) and flags.c_contiguous and flags.aligned:
        if not flags.writeable:
            return array
        plain = array.view()
    else:
        plain = np.require(array, dtype, ["C", "A"]).view()
    plain.flags.writeable = False
    return plain


class CachedDispatch:
    """A kernel that is called repeatedly with arguments of the same types.

    Before each call numba examines the type of every array. For a short call with some forty arrays
    that is nine tenths of its time. From the second call on with the same lasting object (one that
    the caller replaces whenever the types could change), this class skips the examination.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._seen: weakref.ref[Any] | None = None
        self._known: tuple[weakref.ref[Any], Function] | None = None

    def __call__(self, lasting: Any, *arguments: Any) -> Any:
        """Call the kernel. All calls with the same `lasting` must have the same argument types."""
        known = self._known
        if known is not None and known[0]() is lasting:
            return known[1](*arguments)
        seen = self._seen
        if seen is None or seen() is not lasting:
            self._seen = weakref.ref(lasting)
            return self._compiled(*arguments)
        entry = self._compiled.compile(tuple(map(self._compiled.typeof_pyval, arguments)))
        self._known = seen, entry
        return entry(*arguments)
