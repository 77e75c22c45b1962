"""Prefetches rows: asks the processor to load memory that a kernel reads soon.

Rows are outside of every cache. A kernel that has a block of rows to read asks for all their cache
lines at once, so that the misses overlap. A prefetch changes no result, and is a no-op on
processors without the instruction.
"""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from headrace.runtime.kernels.numba_kernels import inlined

_point_to: Any = cgutils.get_item_pointer
FLOATS_A_LINE, _FEW = 16, 4
_READ_AND_WRITE, _KEEP_IN_ALL_CACHES, _DATA = 1, 3, 1


def _prefetch(typing_context, array, place):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        zeros = [ir.Constant(arguments[1].type, 0)] * (signature.args[0].ndim - 1)
        return _hint(context, builder, signature, arguments[0], [arguments[1], *zeros])  # type: ignore[no-untyped-call]

    return types.void(array, place), generate


def _prefetch_at(typing_context, array, place, k):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return _hint(context, builder, signature, arguments[0], arguments[1:])  # type: ignore[no-untyped-call]

    return types.void(array, place, k), generate


def _hint(context, builder, signature, array, indices):  # type: ignore[no-untyped-def]
    array_type = signature.args[0]
    data = context.make_array(array_type)(context, builder, array)
    pointer = _point_to(context, builder, array_type, data, indices)
    byte = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    word = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.type, word, word, word])
    hint = builder.module.declare_intrinsic("llvm.prefetch", [byte.type], kind)
    settings = (_READ_AND_WRITE, _KEEP_IN_ALL_CACHES, _DATA)
    builder.call(hint, [byte, *(ir.Constant(word, setting) for setting in settings)])
    return context.get_dummy_value()


prefetch: Any = intrinsic(_prefetch)
"""Prefetch the cache line of the first element of `array[place]`. For use inside kernels."""

prefetch_at: Any = intrinsic(_prefetch_at)
"""Prefetch the cache line of `array[place, k]`. For use inside kernels."""


@inlined
def prefetch_row(values, place):  # type: ignore[no-untyped-def]
    """Prefetch all cache lines of `values[place]`, (width,) float32. For use inside kernels."""
    prefetch(values, place)
    width = values.shape[1]
    if width > _FEW:  # a prefetch has a cost, and few floats are rarely in two lines
        for k in range(FLOATS_A_LINE, width, FLOATS_A_LINE):
            prefetch_at(values, place, k)
        prefetch_at(values, place, width - 1)
