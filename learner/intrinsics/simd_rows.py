"""Changes neighbouring numbers of a row together: one load and one store for two or four of them.

LLVM would do so only if it could prove that the columns do not overlap and how rows are laid out.
These intrinsics say it. For use inside kernels, on columns laid out row by row
(`pserver.rows.columns.lay_out`): the column says which number of the row comes first.

They reach into numba as `learner.intrinsics.simd` does: `intrinsic`, `cgutils.get_item_pointer` and
`context.make_array` for the address, llvmlite's `ir` builder for the instructions.
"""

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
        result = (builder.fadd if is_float else builder.add)(found, more)
        builder.store(result, pointer, align=4)
        return context.get_dummy_value()

    return types.void(column, place, column.dtype, column.dtype), generate


def _raise_four(typing_context, column, place, first, second, third, fourth):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _neighbours(context, builder, signature, arguments, 4)
        found = builder.load(pointer, align=4)
        none = _I32(0)
        more = _together(builder, [*arguments[2:4], none, none])
        least = _together(builder, [none, none, *arguments[4:]])
        result = builder.add(found, more)
        result = builder.select(builder.icmp_unsigned(">", result, least), result, least)
        builder.store(result, pointer, align=4)
        return builder.extract_element(found, _I32(2))

    of = types.uint32
    return of(column, place, of, of, of, of), generate


def _neighbours(context: Any, builder: Any, signature: Any, arguments: Any, count: int) -> Any:
    """Return a pointer to the first of `count` neighbouring numbers, as a pointer to a vector."""
    column = signature.args[0]
    data = context.make_array(column)(context, builder, arguments[0])
    indices = [arguments[1], *[ir.Constant(arguments[1].type, 0)] * (column.ndim - 1)]
    first = _point_to(context, builder, column, data, indices)
    return builder.bitcast(first, ir.VectorType(first.type.pointee, count).as_pointer())


def _together(builder: Any, numbers: list[Any]) -> Any:
    result = ir.Constant(ir.VectorType(numbers[0].type, len(numbers)), ir.Undefined)
    for k, number in enumerate(numbers):
        result = builder.insert_element(result, number, _I32(k))
    return result


add_two: Any = intrinsic(_add_two)
"""Add two numbers to the one of `column[place]` and to its neighbour, of the same type."""

raise_four: Any = intrinsic(_raise_four)
"""Change four unsigned ints from `column[place]` on: add `first` and `second` to two of them, raise
the others to at least `third` and `fourth`. Return the third as it was before."""
