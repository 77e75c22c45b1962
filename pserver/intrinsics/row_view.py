"""One row of a table, as compiled code works on it best.

A table's columns lie in memory row by row, so numba sees arrays of any strides, in which the next
float may be anywhere, and an index that may be negative. Of a row's own floats it is true that they
are neighbours: `row_of` says so, and they are worked on several at a time. And what else a row has
is at a fixed distance from its first column: `record_of` says so, and where the row lies is
reckoned once, not for every column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj, numpy_support

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


def record_of(columns: dict[str, tuple[Any, ...]]) -> Any:
    """Return what gives these neighbouring columns of one row, as a record to read and to write.

    columns: type of each, as `lay_out` takes them, the first of a row's or some in its midst. What
    is returned takes the first of these columns, (rows,), and a place. For use inside kernels.
    """
    plain = np.dtype([(name, *kind) for name, kind in columns.items()])
    made: Any = numpy_support.from_dtype(plain)

    def record(typing_context, column, place):  # type: ignore[no-untyped-def]  # noqa: ARG001
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            column_type = signature.args[0]
            data = context.make_array(column_type)(context, builder, arguments[0])
            first = _point_to(context, builder, column_type, data, [arguments[1]])
            return builder.bitcast(first, context.get_value_type(made))

        return made(column, place), generate

    return intrinsic(record)
