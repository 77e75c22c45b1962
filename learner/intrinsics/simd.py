"""Vectors of eight neighbouring floats for numba kernels.

LLVM vectorizes only long loops by itself: it takes 32 floats at a time, handles the remainder one
by one, and first checks whether any two arrays overlap. A row has 16 coordinates, all of which were
remainder. Here the kernel itself asks for eight.

An inlined function uses operators and the functions below. It works `at` one coordinate (an
integer) with numbers, or at `eight(k)`, the eight coordinates from k on, with vectors. The code
that walks an array calls it twice:

    whole = count - count % LANES
    for k in range(0, whole, LANES):
        step(..., eight(k))
    for k in range(whole, count):
        step(..., k)

Each operation rounds as for a single number, so both ways give the same bits.

This file reaches into numba's internals, below what `numba.njit` promises to keep. A `types.Type`
is the compiler's name for a value; a data model (`register_model`) says which LLVM type holds it,
here a vector; a template (`infer_global`, `AbstractTemplate`) says which types an operator takes
and returns; `intrinsic` and `lower_builtin` emit the instructions through llvmlite's `ir` builder.
numba and llvmlite are therefore pinned to a minor version, and
tests/learner/kernels/test_intrinsics.py runs every intrinsic against numpy, so that an upgrade that
breaks one says which. The refused alternatives: plain loops, with which the core of a factorization
machine of 16 dimensions learned 125 k examples/s and not 215 k; and C,
which would need a compiler, a wheel per platform, and a second language for kernels that have to be
inlined into these.
"""

import operator
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from headrace.runtime.kernels.numba_kernels import inlined

LANES = 8

_COMPARED = (">", "<")
_I32 = ir.IntType(32)


class VectorType(types.Type):
    """The type of LANES numbers of one type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"lanes({dtype})")


class _Vector8Type(types.Type):
    """The type of `eight(k)`: LANES coordinates from k on."""

    def __init__(self) -> None:
        super().__init__(name="eight")


_EIGHT = _Vector8Type()


@register_model(_Vector8Type)
class _Vector8Model(models.PrimitiveModel):
    def __init__(self, manager: Any, eight_type: _Vector8Type) -> None:
        super().__init__(manager, eight_type, ir.IntType(64))  # type: ignore[no-untyped-call]


@register_model(VectorType)
class _VectorTypeModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: VectorType) -> None:
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, _vector(number))  # type: ignore[no-untyped-call]


def _vector(number: Any) -> Any:
    return ir.VectorType(number, LANES)


def _constant(kind: Any, numbers: list[int]) -> Any:
    return ir.Constant(ir.VectorType(kind, len(numbers)), numbers)


def _all(builder: Any, number: Any) -> Any:
    """Return a vector of this number in every lane."""
    nothing = ir.Constant(_vector(number.type), ir.Undefined)
    first = builder.insert_element(nothing, number, _I32(0))
    return builder.shuffle_vector(first, nothing, _constant(_I32, [0] * LANES))


def _broadcast(context: Any, builder: Any, value: Any, kind: Any, wanted: Any) -> Any:
    """Return a value of type `kind` as one of type `wanted`: a number becomes a vector."""
    if isinstance(kind, VectorType):
        return value
    number = context.cast(builder, value, kind, _number_of(wanted))
    return _all(builder, number) if isinstance(wanted, VectorType) else number


def _number_of(kind: Any) -> Any:
    """Return the type of the numbers in a vector, or of a single number."""
    return kind.dtype if isinstance(kind, VectorType) else kind


# operators


def _operator(symbol: Any, floats: str, integers: str) -> None:
    """Let an operator take vectors: two, or one and a number of the same type.

    floats, integers: the LLVM instruction, "" if the operator is not offered for that kind.
    """

    class Template(AbstractTemplate):
        key = symbol

        def generic(self, args: tuple[Any, ...], kws: Any) -> Any:
            lanes = [each for each in args if isinstance(each, VectorType)]
            if not lanes or kws or not _method(lanes[0], floats, integers):
                return None
            if any(_number_of(each) != lanes[0].dtype for each in args):
                return None  # a wider number would round differently in a vector than alone
            result = VectorType(types.boolean) if floats in _COMPARED else lanes[0]
            return signature(result, *args)  # type: ignore[no-untyped-call]

    def generate(context: Any, builder: Any, signed: Any, values: Any) -> Any:
        lanes = next(each for each in signed.args if isinstance(each, VectorType))
        taken = [
            _broadcast(context, builder, value, kind, lanes)
            for value, kind in zip(values, signed.args, strict=True)
        ]
        if floats in _COMPARED:
            return builder.fcmp_ordered(floats, *taken)
        return getattr(builder, _method(lanes, floats, integers))(*taken)

    infer_global(symbol)(Template)  # type: ignore[no-untyped-call]
    for kinds in (
        (VectorType, VectorType),
        (VectorType, types.Number),
        (types.Number, VectorType),
        (VectorType,),
    ):
        lower_builtin(symbol, *kinds)(generate)  # type: ignore[no-untyped-call]


def _method(lanes: VectorType, floats: str, integers: str) -> str:
    return floats if isinstance(lanes.dtype, types.Float) else integers


# a table with a name, because the stamp of a kernel covers the names of this module
_OPERATORS = (
    (operator.add, "fadd", "add"),
    (operator.iadd, "fadd", "add"),
    (operator.sub, "fsub", "sub"),
    (operator.mul, "fmul", "mul"),
    (operator.imul, "fmul", "mul"),
    (operator.truediv, "fdiv", ""),
    (operator.xor, "", "xor"),
    (operator.ixor, "", "xor"),
    (operator.rshift, "", "lshr"),
    (operator.neg, "fneg", ""),
    (operator.gt, ">", ""),
    (operator.lt, "<", ""),
)
for _symbol, _floats, _integers in _OPERATORS:
    _operator(_symbol, _floats, _integers)


# functions of vectors and of numbers alike


def _llvm(name: str, arguments: int) -> Any:
    """Return an LLVM function of floats, applied to each lane."""

    def function(_context: Any, builder: Any, signed: Any, values: Any) -> Any:
        result, kind = signed.return_type, values[0].type
        lanes = f"v{LANES}" if isinstance(result, VectorType) else ""
        called = f"llvm.{name}.{lanes}f{_number_of(result).bitwidth}"
        of_kind = ir.FunctionType(kind, [kind] * len(values))
        found = cgutils.get_or_insert_function(builder.module, of_kind, called)  # type: ignore[no-untyped-call]
        return builder.call(found, values)

    if arguments == 1:

        def one(typing_context, x):  # type: ignore[no-untyped-def]  # noqa: ARG001
            return x(x), function

        return intrinsic(one)

    def two(typing_context, x, y):  # type: ignore[no-untyped-def]  # noqa: ARG001
        return x(x, y), function

    return intrinsic(two)


root: Any = _llvm("sqrt", 1)
"""Return the square root of x."""
absolute: Any = _llvm("fabs", 1)
"""Return x without its sign."""
with_sign: Any = _llvm("copysign", 2)
"""Return x with the sign of y."""


def _chosen(typing_context, condition, yes, no):  # type: ignore[no-untyped-def]  # noqa: ARG001
    result = next((each for each in (yes, no) if isinstance(each, VectorType)), yes)
    if _number_of(yes) != _number_of(no):
        raise TypingError(f"expected two of one type, got {yes} and {no}")

    def generate(context: Any, builder: Any, signed: Any, values: Any) -> Any:
        either = [
            _broadcast(context, builder, value, kind, result)
            for value, kind in zip(values[1:], signed.args[1:], strict=True)
        ]
        return builder.select(values[0], *either)

    return result(condition, yes, no), generate


chosen: Any = intrinsic(_chosen)
"""Return `yes` where the condition holds, else `no`; a comparison with NaN does not hold.

Both are computed first. If the condition is a vector, one of them may be a number.
"""


def _float_of(typing_context, number):  # type: ignore[no-untyped-def]  # noqa: ARG001
    result = VectorType(types.float32) if isinstance(number, VectorType) else types.float32

    def generate(_context: Any, builder: Any, signed: Any, values: Any) -> Any:
        short, long = _I32, ir.FloatType()
        if isinstance(signed.return_type, VectorType):
            short, long = _vector(short), _vector(long)
        return builder.sitofp(builder.trunc(values[0], short), long)

    return result(number), generate


float_of: Any = intrinsic(_float_of)
"""Return an integer of at most 24 bits as a float32: exactly."""


# places in an array


def _eight(typing_context, k):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context: Any, builder: Any, signed: Any, values: Any) -> Any:
        return context.cast(builder, values[0], signed.args[0], types.int64)

    return _EIGHT(k), generate


eight: Any = intrinsic(_eight)
"""Return the LANES coordinates from k on, to pass as `at`."""


def _result_at(dtype: Any, at: Any) -> Any:
    return VectorType(dtype) if isinstance(at, _Vector8Type) else dtype


def _found_at(array: Any, at: Any) -> Any:
    """Return the type at this place. Raises TypingError if the array may have gaps."""
    if array.ndim != 1 or array.layout != "C":
        raise TypingError(f"expected one row of neighbours, got {array}")
    return _result_at(array.dtype, at)


def _pointer(context: Any, builder: Any, signed: Any, values: Any) -> Any:
    """Return a pointer to `array[first + at]`, given array, first and at."""
    array_type, first_type, at_type = signed.args[:3]
    array = context.make_array(array_type)(context, builder, values[0])
    at = values[2]
    if not isinstance(at_type, _Vector8Type):
        at = context.cast(builder, at, at_type, types.int64)
    place = builder.add(context.cast(builder, values[1], first_type, types.int64), at)
    pointer = builder.gep(array.data, [place])
    if isinstance(at_type, _Vector8Type):
        pointer = builder.bitcast(pointer, _vector(pointer.type.pointee).as_pointer())
    return pointer


def _take(typing_context, array, first, at):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context: Any, builder: Any, signed: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signed, values)
        return builder.load(pointer, align=signed.args[0].dtype.bitwidth // 8)

    return _found_at(array, at)(array, first, at), generate


take: Any = intrinsic(_take)
"""Return `array[first + at]` of a contiguous array. Bounds are not checked."""


def _put(typing_context, array, first, at, value):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context: Any, builder: Any, signed: Any, values: Any) -> Any:
        pointer = _pointer(context, builder, signed, values)
        builder.store(values[3], pointer, align=signed.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    wanted = _found_at(array, at)
    return types.void(array, first, at, wanted), generate


put: Any = intrinsic(_put)
"""Set `array[first + at]` to this value. Bounds are not checked."""


@inlined
def add(array, first, at, gain):  # type: ignore[no-untyped-def]
    """Add to `array[first + at]`."""
    put(array, first, at, take(array, first, at) + gain)


def _numbered(typing_context, begin, step, at):  # type: ignore[no-untyped-def]  # noqa: ARG001
    def generate(context: Any, builder: Any, signed: Any, values: Any) -> Any:
        begin, step, at = values
        if not isinstance(signed.args[2], _Vector8Type):
            at = context.cast(builder, at, signed.args[2], types.uint64)
        first = builder.add(begin, builder.mul(at, step))
        if not isinstance(signed.args[2], _Vector8Type):
            return first
        steps = builder.mul(_all(builder, step), _constant(ir.IntType(64), list(range(LANES))))
        return builder.add(_all(builder, first), steps)

    result = _result_at(types.uint64, at)
    return result(types.uint64, types.uint64, at), generate


numbered: Any = intrinsic(_numbered)
"""Return `begin + at * step`, modulo 2^64."""
