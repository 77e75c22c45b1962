"""Neighbouring numbers of a row, changed together: one load, one store for two or four of them.

LLVM would do so by itself only if it knew that nothing of it overlaps, and that rows lie as they
do. For use inside kernels, on columns that lie row by row (`pserver.rows.columns.lay_out`): a
column says where in a row the first of the numbers is.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_point_to: Any = cgutils.get_item_pointer
_I32 = ir.IntType(32)


def _add_two(typing_context, column, place, first, second):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _neighbours(context, builder, signature, arguments, 2)
        found = builder.load(pointer, align=4)
        more = _together(builder, arguments[2:])
        is_float = isinstance(column.dtype, types.Float)
        made = (builder.fadd if is_float else builder.add)(found, more)
        builder.store(made, pointer, align=4)
        return context.get_dummy_value()

    return types.void(column, place, column.dtype, column.dtype), generate


def _raise_four(typing_context, column, place, first, second, third, fourth):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _neighbours(context, builder, signature, arguments, 4)
        found = builder.load(pointer, align=4)
        none = _I32(0)
        more = _together(builder, [*arguments[2:4], none, none])
        least = _together(builder, [none, none, *arguments[4:]])
        made = builder.add(found, more)
        made = builder.select(builder.icmp_unsigned(">", made, least), made, least)
        builder.store(made, pointer, align=4)
        return builder.extract_element(found, _I32(2))

    of = types.uint32
    return of(column, place, of, of, of, of), generate


def _neighbours(context: Any, builder: Any, signature: Any, arguments: Any, count: int) -> Any:
    """Return where so many numbers begin, as a pointer to all of them."""
    column = signature.args[0]
    data = context.make_array(column)(context, builder, arguments[0])
    indices = [arguments[1], *[ir.Constant(arguments[1].type, 0)] * (column.ndim - 1)]
    first = _point_to(context, builder, column, data, indices)
    return builder.bitcast(first, ir.VectorType(first.type.pointee, count).as_pointer())


def _together(builder: Any, numbers: list[Any]) -> Any:
    made = ir.Constant(ir.VectorType(numbers[0].type, len(numbers)), ir.Undefined)
    for k, number in enumerate(numbers):
        made = builder.insert_element(made, number, _I32(k))
    return made


add_two: Any = intrinsic(_add_two)
"""Add two numbers to the one of `column[place]` and to its neighbour, of the same type."""

raise_four: Any = intrinsic(_raise_four)
"""Of four unsigned ints from `column[place]` on, add the first two numbers to two, and let the
other two be no less than the other two numbers. Return what the third of them was."""
