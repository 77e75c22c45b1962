"""How kernels are compiled: what numba makes by default, less what nobody uses.

numba counts references to every array that passes through a call. A kernel that is handed its
arrays, makes none and keeps none has no use for that, and with some forty arrays in a tuple the
counting took nine tenths of the joiner's time. numba's own sorting kernels go without it by the
same option. What it may not do in return: allocate, or assign a whole array to a inlined of
another.

And it makes every function callable from Python and from C, by wrappers that take such tuples
apart. A kernel is called from Python alone, and a inlined of one from kernels alone: without the
rest, and with nothing on disk for parts, which are in their kernels, a fresh clone compiles in half
the time.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numba import njit
from numba.core.registry import CPUDispatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Function = Callable[..., Any]

_BARE: dict[str, Any] = {"nogil": True, "_nrt": False, "no_cfunc_wrapper": True}


class _InlinedDispatcher(CPUDispatcher):
    """Without its wrapper a compiled function cannot be called from Python: it would crash."""

    def __call__(self, *_arguments: object, **_more: object) -> NoReturn:
        name = self.py_func.__qualname__
        raise TypeError(f"{name} is part of a kernel: expected a call from one, not from Python")


def kernel(function: Function) -> Any:
    """Compile a function that only reads and writes the arrays it is given."""
    return njit(cache=True, **_BARE)(function)


def inlined(function: Function) -> Any:
    """Compile a inlined of a kernel, to be put in its place: a call would copy its arguments, and
    an array is seven words of them. Kernels alone can call it.
    """
    return _part(function)


def inlined_ieee_division(function: Function) -> Any:
    """Compile a inlined that divides as arrays do: by zero gives infinity, and nobody checks."""
    return _part(function, error_model="numpy")


def _part(function: Function, **options: object) -> Any:
    compiled = njit(forceinline=True, no_cpython_wrapper=True, **_BARE, **options)(function)  # type: ignore[call-overload]
    compiled.__class__ = _InlinedDispatcher
    return compiled


def read_only(array: npt.NDArray, dtype: type) -> npt.NDArray:
    """Return the array in the one type that kernels are compiled for.

    What comes from a message is read-only and perhaps unaligned, what a test or a server made is
    not.
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
    """A kernel that is called again and again with arguments of the same types.

    Before each call numba looks at the type of every array that it is handed: of a short call with
    some forty arrays that is nine tenths. What comes the second time with the same array (of those
    that last, one that is replaced whenever their types could change) is called past that.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled
        self._seen: weakref.ref[Any] | None = None
        self._known: tuple[weakref.ref[Any], Function] | None = None

    def __call__(self, lasting: Any, *arguments: Any) -> Any:
        """Call the kernel. The caller answers for the types: those of all calls with `lasting`."""
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
