"""One row of a table's values, as compiled code can work on it several floats at a time.

A table's columns lie in memory row by row, so numba sees an array of any strides, in which the next
float may be anywhere, and an index that may be negative. Of a row's own floats it is true that they
are neighbours; this says so.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj

_point_to: Any = cgutils.get_item_pointer
_populate: Any = arrayobj.populate_array


def _row_of(typing_context, values, place):  # type: ignore[no-untyped-def]  # noqa: ARG001
    made = types.Array(values.dtype, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values_type = signature.args[0]
        data = context.make_array(values_type)(context, builder, arguments[0])
        zero = ir.Constant(data.nitems.type, 0)
        indices = [builder.sext(arguments[1], zero.type), zero]
        row = context.make_array(made)(context, builder)
        _populate(
            row,
            data=_point_to(context, builder, values_type, data, indices),
            shape=[builder.extract_value(data.shape, 1)],
            strides=[data.itemsize],
            itemsize=data.itemsize,
            meminfo=None,
        )
        return row._getvalue()  # noqa: SLF001 - numba's own kernels are written so

    return made(values, place), generate


row_of: Any = intrinsic(_row_of)
"""Return `values[place]`, (width,), of values (rows, width). Compiled; for use inside kernels."""
