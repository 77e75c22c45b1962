"""Views of one row of a table, with the memory layout that compiled code needs.

A table's columns are interleaved row by row, so numba sees arrays of any strides and indexes that
may be negative. The floats of one row, however, are contiguous. `row_of` declares that, and
compilers then process several floats at a time. The other columns of a row are at fixed distances
from its first column. `record_of` declares that, and the row's address is computed once, not once a
column.
"""

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
    view = types.Array(values.dtype, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values_type = signature.args[0]
        data = context.make_array(values_type)(context, builder, arguments[0])
        zero = ir.Constant(data.nitems.type, 0)
        indices = [builder.sext(arguments[1], zero.type), zero]
        row = context.make_array(view)(context, builder)
        _populate(
            row,
            data=_point_to(context, builder, values_type, data, indices),
            shape=[builder.extract_value(data.shape, 1)],
            strides=[data.itemsize],
            itemsize=data.itemsize,
            meminfo=None,
        )
        return row._getvalue()  # noqa: SLF001 - as in numba's own code

    return view(values, place), generate


row_of: Any = intrinsic(_row_of)
"""Return `values[place]`, (width,), of values (rows, width). For use inside kernels."""


def record_of(columns: dict[str, tuple[Any, ...]]) -> Any:
    """Return a function for these neighbouring columns of one row, as a record to read and to
    write.

    columns: type of each, as for `lay_out`; they may begin with any column of a row. The function
    takes the first of these columns, (rows,), and a place. For use inside kernels.
    """
    plain = np.dtype([(name, *kind) for name, kind in columns.items()])
    row: Any = numpy_support.from_dtype(plain)

    def record(typing_context, column, place):  # type: ignore[no-untyped-def]  # noqa: ARG001
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            column_type = signature.args[0]
            data = context.make_array(column_type)(context, builder, arguments[0])
            first = _point_to(context, builder, column_type, data, [arguments[1]])
            return builder.bitcast(first, context.get_value_type(row))

        return row(column, place), generate

    return intrinsic(record)
