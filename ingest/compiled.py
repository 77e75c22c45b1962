"""How kernels are compiled that take many arrays at once.

numba counts references to every array that passes through a call. A kernel that is handed its
arrays, makes none and keeps none has no use for that, and with some forty arrays in a tuple the
counting took nine tenths of the joiner's time. numba's own sorting kernels go without it by the
same option. What it may not do in return: allocate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

kernel: Callable[[Callable[..., Any]], Any] = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
"""Decorates a function that only reads and writes the arrays it is given."""

part: Callable[[Callable[..., Any]], Any] = njit(  # type: ignore[call-overload]
    cache=True, nogil=True, _nrt=False, forceinline=True
)
"""Decorates a part of a kernel that is called for every token: a call would copy its arguments, and
an array is seven words of them."""
