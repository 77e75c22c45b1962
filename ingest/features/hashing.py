"""Hashes values: the canonical text of a value, and the ids made of its hash.

An id must come out the same in a joiner that saw one JSON, in a server that saw another, and in ten
years. So a value is first written as canonical text (2, 2.0 and "2" are one value). The text is
hashed with XXH64 (Yann Collet, the XXH64 algorithm, seed 0). The hash is mixed with the number of
the field, so that one value in two fields gets two ids. The compiled hash runs over a whole column
of strings in Arrow's layout: one buffer of bytes, and offsets into it.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.runtime.kernels.kernel_cache import compiled_and_kept
from headrace.runtime.kernels.numba_kernels import inlined, kernel

Hashes = npt.NDArray[np.uint64]

FIELD_BITS = 10
"""Lower bits of an id that hold the number of its field."""
ABSENT = np.uint64(0x9AE16A3B2F90404F)
"""The hash of a missing value; no short text has it, so null and "absent" stay two values."""

_SHORT = 64
"""Longest text in characters, or number in bits, whose hash is cached; this bounds the cache."""
_REMEMBERED = 1 << 16

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW = np.uint64((1 << FIELD_BITS) - 1)


def canonical(value: object) -> str | None:
    """Return the canonical text of a scalar; None for null and for other values."""
    kind = type(value)
    if kind is str:
        return value  # type: ignore[return-value]
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(_as_in_json(value))  # type: ignore[arg-type]
    if kind is float:
        number: float = value  # type: ignore[assignment]
        return str(int(number)) if number.is_integer() else repr(number)
    return None


def _as_in_json(number: int) -> int:
    """Return the whole number that an event's JSON parser reads: beyond 64 bits it is a float."""
    if -(1 << 63) <= number < 1 << 64:
        return number
    try:
        return int(float(number))
    except OverflowError:
        return number  # no event has it: its JSON is refused


def real(value: object) -> float:
    """Return the number of a scalar, or of its text; NaN without one."""
    if type(value) is float or type(value) is int or type(value) is str:
        try:
            return float(value)
        except (ValueError, OverflowError):
            return math.nan
    return math.nan


def texts(values: list[object]) -> pa.StringArray:
    """Return the canonical texts of a column; null where `canonical` returns None."""
    if _are_texts(values):
        try:
            return pa.array(values, pa.string())
        except (pa.ArrowException, UnicodeError):
            pass  # other types among them, or text that is not Unicode
    return _mixed(values)


def hash_values(values: list[object]) -> Hashes:
    """Return the hash of each value's canonical text, ABSENT where it has none; shape (n,).

    Nearly all columns have one type: Arrow reads these, and they are hashed without Python strings.
    """
    if len(values) == 1:
        return np.array([hash_value(values[0])], np.uint64)
    if not _are_texts(values):
        kinds = set(map(type, values)) - {type(None)}
        if not kinds:
            return np.full(len(values), ABSENT, np.uint64)
        if kinds == {int}:
            try:
                return hash_integers(pa.array(values, pa.int64()))
            except OverflowError:
                pass
        elif kinds == {bool}:
            return _OF_FLAGS[np.fromiter(map(_FLAG.__getitem__, values), np.int8, len(values))]
    return hash_strings(texts(values))


def string_buffers(
    strings: pa.StringArray,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return read-only views of the offsets, (n + 1,), and of the bytes they point into."""
    count = len(strings)
    _, starts, data = strings.buffers()
    if count == 0:
        offsets = np.zeros(1, np.int32)
    else:
        offsets = np.frombuffer(starts, np.int32)[strings.offset : strings.offset + count + 1]
    flat = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    # Arrow's buffers may be writable or not: read-only arrays give kernels one type to compile for
    offsets.flags.writeable = flat.flags.writeable = False
    return offsets, flat


def hash_strings(strings: pa.StringArray) -> Hashes:
    """Return the XXH64 of each string's UTF-8 bytes, ABSENT where it is null; shape (n,)."""
    count = len(strings)
    hashes = np.empty(count, np.uint64)
    if count == 0:
        return hashes
    offsets, data = string_buffers(strings)
    _hash_many(data, offsets, hashes)
    if strings.null_count:
        hashes[strings.is_null().to_numpy(zero_copy_only=False)] = ABSENT
    return hashes


def hash_integers(numbers: pa.Int64Array) -> Hashes:
    """Return the hash of each number's decimal text, ABSENT where it is null; shape (n,)."""
    whole = numbers.fill_null(0) if numbers.null_count else numbers
    hashes = hash_whole_numbers(whole.to_numpy())
    if numbers.null_count:
        hashes[numbers.is_null().to_numpy(zero_copy_only=False)] = ABSENT
    return hashes


def hash_whole_numbers(numbers: npt.NDArray[np.int64]) -> Hashes:
    """Return the hash of each number's decimal text; shape (n,)."""
    hashes = np.empty(numbers.shape[0], np.uint64)
    _hash_decimals(numbers, hashes)
    return hashes


def hash_text(text: str | None) -> np.uint64:
    """Return the hash that `hash_strings` gives for this string."""
    if text is None:
        return ABSENT
    data = np.frombuffer(text.encode(), np.uint8)
    return np.uint64(_hash_one(data))


def field_id(value_hash: np.uint64, number: int) -> int:
    """Return the id of a value with this hash in the field of this number."""
    return int(field_ids(np.array([value_hash], np.uint64), number)[0])


def field_ids(hashes: Hashes, number: int) -> Hashes:
    """Return the ids of values with these hashes in the field of this number; shape (n,)."""
    ids = np.empty(hashes.shape[0], np.uint64)
    _number_many(hashes, np.uint64(number), ids)
    return ids


Numbering = npt.NDArray[np.int64]
"""Instructions for making the ids of single-valued fields from hashes; made by `numbering`."""


class Numbered(NamedTuple):
    """Instructions for making the id of one single-valued field."""

    number: int
    place: int
    """Its column in the ids."""
    row: int
    """Its row in the hashes; -1 for a cross."""
    parts: Sequence[int]
    """Columns of the fields that a cross combines."""


def numbering(fields: Sequence[Numbered]) -> Numbering:
    """Return instructions for making the ids of `fields`, every cross after its parts.

    They are one array, because passing arrays to a kernel takes longer than numbering one event:
    the number of fields; for each its number, column, row and begin of its parts; the end of the
    last one's parts; the parts of all fields.
    """
    heads: list[int] = [len(fields)]
    parts: list[int] = []
    begin = 1 + 4 * len(fields) + 4
    for field in fields:
        heads += [field.number, field.place, field.row, begin + len(parts)]
        parts += field.parts
    return np.array([*heads, 0, 0, 0, begin + len(parts), *parts], np.int64)


def number_fields(hashes: Hashes, numbering: Numbering) -> Hashes:
    """Return the ids of n events whose values have these hashes, (rows, n); shape (n, fields)."""
    ids = np.empty((hashes.shape[1], numbering[0]), np.uint64)
    _number_fields(hashes, numbering, ids)
    return ids


def hash_value(value: object) -> int:
    """Return the hash of one value's canonical text, ABSENT if it has none.

    Short values are cached, because the values of contexts repeat.
    """
    if type(value) is str:
        short = len(value) <= _SHORT
    else:
        short = type(value) is int and value.bit_length() <= _SHORT
    return _hash_known(value) if short else _hash_afresh(value)


def _hash_afresh(value: object) -> int:
    text = canonical(value)
    if type(value) is str and not value.isascii():
        text = _sound(value)
    return int(hash_text(text))


_hash_known = lru_cache(_REMEMBERED, typed=True)(_hash_afresh)


def _are_texts(values: list[object]) -> bool:
    """Whether the first value that is not null is a text; then nearly always all are."""
    return type(next((value for value in values if value is not None), None)) is str


def _mixed(values: list[object]) -> pa.StringArray:
    known: dict[tuple[type, object], str | None] = {}
    column: list[str | None] = []
    for value in values:
        kind = type(value)
        if kind is str:
            # a lone surrogate is not UTF-8, but strings that Python parsed may contain one
            text = value if value.isascii() else _sound(value)  # type: ignore[attr-defined,arg-type]
        elif kind is bool or kind is int or kind is float:
            key = (kind, value)
            text = known.get(key)
            if text is None:
                text = known[key] = canonical(value)
        else:
            text = None
        column.append(text)  # type: ignore[arg-type]
    return pa.array(column, pa.string())


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


@inlined
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined
def _round(lane, word):  # type: ignore[no-untyped-def]
    return _rotate(lane + word * _P2, 31) * _P1


@inlined
def _merge(hashed, lane):  # type: ignore[no-untyped-def]
    return (hashed ^ _round(np.uint64(0), lane)) * _P1 + _P4


@inlined
def _word(data, at, size):  # type: ignore[no-untyped-def]
    start = np.uint64(at)  # unsigned: the bytes become one load
    word = np.uint64(0)
    for k in range(size):
        word |= np.uint64(data[start + np.uint64(k)]) << np.uint64(8 * k)
    return word


@kernel
def fmix64(word):  # type: ignore[no-untyped-def]
    """Return the 64-bit finalizer of MurmurHash3: a bijection; every bit affects all bits."""
    word = np.uint64(word)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@inlined
def xxh64(data, at, end):  # type: ignore[no-untyped-def]
    """Return XXH64, seed 0, of `data[at:end]`. Inlined into kernels."""
    length = np.uint64(end - at)
    if end - at >= 32:
        one, two, three, four = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while end - at >= 32:
            one = _round(one, _word(data, at, 8))
            two = _round(two, _word(data, at + 8, 8))
            three = _round(three, _word(data, at + 16, 8))
            four = _round(four, _word(data, at + 24, 8))
            at += 32
        hashed = _rotate(one, 1) + _rotate(two, 7) + _rotate(three, 12) + _rotate(four, 18)
        hashed = _merge(_merge(_merge(_merge(hashed, one), two), three), four)
    else:
        hashed = _P5
    hashed += length
    while end - at >= 8:
        hashed = _rotate(hashed ^ _round(np.uint64(0), _word(data, at, 8)), 27) * _P1 + _P4
        at += 8
    if end - at >= 4:
        hashed = _rotate(hashed ^ (_word(data, at, 4) * _P1), 23) * _P2 + _P3
        at += 4
    while at < end:
        hashed = _rotate(hashed ^ (np.uint64(data[at]) * _P5), 11) * _P1
        at += 1
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))


@compiled_and_kept(nogil=True)
def _hash_many(data, offsets, hashes):  # type: ignore[no-untyped-def]
    for i in range(hashes.shape[0]):
        hashes[i] = xxh64(data, np.int64(offsets[i]), np.int64(offsets[i + 1]))


@compiled_and_kept(nogil=True)
def _number_many(hashes, number, ids):  # type: ignore[no-untyped-def]
    for i in range(hashes.shape[0]):
        ids[i] = (fmix64(hashes[i] + number * _P1) & ~_LOW) | number


@compiled_and_kept(nogil=True)
def _number_fields(hashes, numbering, ids):  # type: ignore[no-untyped-def]
    for f in range(numbering[0]):
        at = 1 + 4 * f
        number, place, row = np.uint64(numbering[at]), numbering[at + 1], numbering[at + 2]
        begin, end = numbering[at + 3], numbering[at + 7]
        for i in range(ids.shape[0]):
            if row >= 0:
                hashed = hashes[row, i]
            else:
                hashed = number
                for k in range(begin, end):
                    hashed = fmix64(hashed * _P3 + ids[i, numbering[k]])
            ids[i, place] = (fmix64(hashed + number * _P1) & ~_LOW) | number


@compiled_and_kept(nogil=True)
def _hash_one(data):  # type: ignore[no-untyped-def]
    return xxh64(data, 0, data.shape[0])


@compiled_and_kept(nogil=True)
def _hash_decimals(numbers, hashes):  # type: ignore[no-untyped-def]
    text = np.empty(20, np.uint8)  # the longest has a sign and 19 digits
    for i in range(numbers.shape[0]):
        negative = numbers[i] < 0
        left = np.uint64(numbers[i])
        if negative:
            left = np.uint64(0) - left
        at = 20
        while True:
            at -= 1
            text[at] = np.uint8(48 + left % np.uint64(10))
            left //= np.uint64(10)
            if left == np.uint64(0):
                break
        if negative:
            at -= 1
            text[at] = np.uint8(45)
        hashes[i] = xxh64(text, at, 20)


_FLAG: dict[object, int] = {False: 0, True: 1, None: 2}
_OF_FLAGS = np.array([hash_text("false"), hash_text("true"), ABSENT], np.uint64)
