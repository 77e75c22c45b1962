"""The tokens of JSON (RFC 8259) in an array of bytes: their ends and values.

Each function is inlined into kernels. It takes the bytes, a position and the end of the event, and
returns positions. The caution of `json_scanner` holds here too. A valid number or string whose
canonical text is not contained in its bytes is distinguished from one whose text is. A token that
may be invalid ends at -1.
"""

import numpy as np

from headrace.runtime.kernels.numba_kernels import inlined

_EXACT_DIGITS = 15
"""A decimal of at most this many digits is the shortest text of its float, so `repr` returns it.
Its whole number and the power of ten are both exact, so their quotient is the nearest float."""
_MOST_ZEROS = 3
"""Zeros after the point; with more, `repr` writes an exponent."""
_WHOLE_DIGITS = 18
"""Digits of a whole number that always fits 64 bits."""
_TENS = 10.0 ** np.arange(23)

_QUOTE, _ESCAPE, _UNICODE, _EXPONENT = ord('"'), ord("\\"), ord("u"), ord("e")
_MINUS, _POINT, _ZERO, _NINE = ord("-"), ord("."), ord("0"), ord("9")
_ENDS_RUN = np.zeros(256, np.bool_)
"""Bytes that end a run of ordinary bytes in a string."""
_ENDS_RUN[:0x20] = _ENDS_RUN[0x80:] = True
_ENDS_RUN[[_QUOTE, _ESCAPE]] = True
_ESCAPES = np.frombuffer(b'"\\/bfnrt', np.uint8)
_HEXADECIMAL = np.full(256, -1, np.int64)
_HEXADECIMAL[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_HEXADECIMAL[np.frombuffer(b"ABCDEF", np.uint8)] = np.arange(10, 16)


@inlined
def space(data, at, end):  # type: ignore[no-untyped-def]
    """Return the position after white space."""
    while at < end and (data[at] == 0x20 or 0x09 <= data[at] <= 0x0A or data[at] == 0x0D):
        at += 1
    return at


@inlined
def string(data, at, end):  # type: ignore[no-untyped-def]
    """Return the position of a string's closing quote, or -1; and whether it has no escape."""
    plain = True
    while at < end:
        first = data[np.uint64(at)]  # unsigned: numba skips the check for negative indexes
        if not _ENDS_RUN[np.uint64(first)]:
            size = 1
        elif first == _QUOTE:
            return at, plain
        elif first == _ESCAPE:
            size, plain = _escape(data, at, end), False
        else:
            size = character(data, at, end)
        if size == 0:
            break
        at += size
    return -1, False


@inlined
def _escape(data, at, end):  # type: ignore[no-untyped-def]
    """Return the bytes of an escape; 0 if it is invalid, or half of a surrogate pair."""
    if at + 1 >= end:
        return 0
    for k in range(_ESCAPES.shape[0]):
        if data[at + 1] == _ESCAPES[k]:
            return 2
    if data[at + 1] != _UNICODE or at + 6 > end:
        return 0
    code = 0
    for k in range(at + 2, at + 6):
        digit = _HEXADECIMAL[data[k]]
        if digit < 0:
            return 0
        code = code * 16 + digit
    return 0 if 0xD800 <= code <= 0xDFFF else 6


@inlined
def number(data, at, end):  # type: ignore[no-untyped-def]
    """Scan a number and return four facts of it.

    They are its end, or -1; the end of its canonical text, -1 if that differs from its bytes; its
    value, NaN if the text differs; and whether it is a whole number of JSON.
    """
    negative = at < end and data[at] == _MINUS
    begin = at = at + 1 if negative else at
    mantissa, digits = 0, 0
    while at < end and _ZERO <= data[at] <= _NINE:
        if digits < _WHOLE_DIGITS:
            mantissa = mantissa * 10 + (data[at] - _ZERO)
        digits += mantissa > 0
        at += 1
    size = at - begin
    if size == 0 or (size > 1 and data[begin] == _ZERO) or size > _WHOLE_DIGITS:
        return -1, -1, np.nan, False
    whole = at >= end or data[at] != _POINT
    stop, kept, value = at, at, np.float64(mantissa)
    if not whole:
        stop, kept, value = _decimal(data, begin, at, end, mantissa, digits)
    if stop < end and data[stop] | 0x20 == _EXPONENT:
        return -1, -1, np.nan, False
    if negative and value == 0:
        return stop, -1, np.nan, False  # the canonical text of -0.0 and -0 is 0
    return stop, kept, -value if negative else value, whole


@inlined
def _decimal(data, begin, point, end, mantissa, digits):  # type: ignore[no-untyped-def]
    """Continue after the point of a number; return what `number` does, without the last fact."""
    at, kept, zeros = point + 1, point, 0
    while at < end and _ZERO <= data[at] <= _NINE:
        if digits < _WHOLE_DIGITS:
            mantissa = mantissa * 10 + (data[at] - _ZERO)
        digits += mantissa > 0
        if data[at] != _ZERO:
            kept = at + 1
        elif kept == point:
            zeros += 1
        at += 1
    places = at - point - 1
    if places == 0:
        return -1, -1, np.nan
    tiny = kept > point and data[begin] == _ZERO and zeros > _MOST_ZEROS
    if digits > _EXACT_DIGITS or places >= _TENS.shape[0] or tiny:
        return at, -1, np.nan
    return at, kept, mantissa / _TENS[places]


@inlined
def integer(data, at, end):  # type: ignore[no-untyped-def]
    """Return a whole number from a text that was scanned as one."""
    negative = data[at] == _MINUS
    value = np.int64(0)
    for k in range(at + negative, end):
        value = value * 10 + data[k] - _ZERO
    return -value if negative else value


@inlined
def same(data, at, available, text, begin, size):  # type: ignore[no-untyped-def]
    """Whether `text[begin:begin + size]` is at `at`, where `available` bytes are left."""
    if available < size:
        return False
    for k in range(size):  # noqa: SIM110  # faster
        if data[at + k] != text[begin + k]:
            return False
    return True


@inlined
def character(data, at, end):  # type: ignore[no-untyped-def]
    """Return the bytes of a UTF-8 character beyond ASCII; 0 if it is invalid.

    Source: table 3-7 of the Unicode standard.
    """
    first = data[at]
    low, high = 0x80, 0xBF
    if 0xC2 <= first <= 0xDF:
        size = 2
    elif 0xE0 <= first <= 0xEF:
        size = 3
        low = 0xA0 if first == 0xE0 else low
        high = 0x9F if first == 0xED else high
    elif 0xF0 <= first <= 0xF4:
        size = 4
        low = 0x90 if first == 0xF0 else low
        high = 0x8F if first == 0xF4 else high
    else:
        return 0
    if at + size > end or not low <= data[at + 1] <= high:
        return 0
    for k in range(at + 2, at + size):
        if data[k] & 0xC0 != 0x80:
            return 0
    return size
