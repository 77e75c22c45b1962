"""Scans many plain JSON events at once for the values of declared fields: the compiled scanner.

Why: decoding an event into Python objects, only to write its values as text for hashing, took half
of the joiner's time. Nearly all events are plain. The canonical texts of their values (see
`features.hashing`) are already in the message: 12, "12", 12.0 and 12.00 all contain the bytes
`12`. So the kernel looks for the declared fields in the bytes as they came, and records where each
text begins and ends. It copies nothing and creates no Python object.

It accepts only what it is sure of. Escapes or exponents in a declared value, more digits than a
float keeps, -0, nested objects, invalid UTF-8 or JSON, a time out of range or a missing id make the
event odd. `read_event`, slow and complete, reads odd events: it is the plain fallback, and a test
holds both to the same answers.

It reaches into the numba options of `runtime.numba_kernels`, and two facts of Python that a canary
test checks (`tests/ingest/decoding/test_scanner_canary.py`). First, `repr` gives back a decimal of
at most 15 digits. Second, it writes an exponent only below 0.0001.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.decoding.json_tokens import integer, number, same, space, string
from headrace.runtime.kernels.numba_kernels import inlined, kernel

Longs = npt.NDArray[np.int64]

ABSENT, TEXT, LIST = 0, 1, 2
"""Kinds of values: null or missing, a scalar with a canonical text, an array of scalars."""
NEEDS_TEXT, NEEDS_REAL, NEEDS_ITEMS = 1, 2, 4
"""Bits for what a declared field needs: its text, its number, the items of its array."""
PLAIN, TICK, ODD = 0, 1, 2
"""States of events; a TICK is plain."""
ID, TIME = 0, 1
"""The first two declared fields, always impression_id and timestamp_ms."""

_PLACES = 64
"""Fields of an event whose order is remembered for the next event."""
_QUOTE, _COMMA, _COLON = ord('"'), ord(","), ord(":")
_OPEN, _CLOSE, _OPEN_ARRAY, _CLOSE_ARRAY = ord("{"), ord("}"), ord("["), ord("]")
_MINUS, _ZERO, _NINE = ord("-"), ord("0"), ord("9")
_LITERALS = np.frombuffer(b"truefalsenull", np.uint8)


class Names(NamedTuple):
    """The declared fields, in the order of their columns."""

    text: npt.NDArray[np.uint8]  # all names in UTF-8, joined
    bounds: Longs  # (fields + 1,) of each in `text`
    needs: npt.NDArray[np.uint8]  # (fields,) of NEEDS_*
    guesses: Longs  # the field that was the k-th of the last event; kernels write it


class FieldPositions(NamedTuple):
    """Positions of the values of n events, a row for each declared field."""

    kinds: npt.NDArray[np.uint8]  # (fields, n) ABSENT, TEXT or LIST
    begins: Longs  # (fields, n) of the text in the bytes, or of the list in the items
    ends: Longs
    reals: npt.NDArray[np.float64]  # (fields, n) NaN where there is no number
    times: Longs  # (n,) timestamp_ms, 0 if odd
    states: npt.NDArray[np.uint8]  # (n,) PLAIN, TICK or ODD
    item_kinds: npt.NDArray[np.uint8]
    item_begins: Longs
    item_ends: Longs
    item_count: Longs  # (1,)


def names_of(needs: dict[str, int]) -> Names:
    """Return the declared fields for `scan`, each with its NEEDS_* bits."""
    encoded = [name.encode() for name in needs]
    bounds = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(name) for name in encoded], out=bounds[1:])
    return Names(
        np.frombuffer(b"".join(encoded), np.uint8),
        bounds,
        np.array(list(needs.values()), np.uint8),
        np.zeros(_PLACES, np.int64),
    )


def no_positions(names: Names, count: int, size_bytes: int) -> FieldPositions:
    """Return empty positions for `count` events of `size_bytes` in total."""
    shape = names.needs.shape[0], count
    # an item takes at least two bytes: its own, and the comma or bracket before it
    items = size_bytes // 2 + 1 if (names.needs & NEEDS_ITEMS).any() else 0
    return FieldPositions(
        np.zeros(shape, np.uint8),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.full(shape, np.nan),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint8),
        np.zeros(items, np.uint8),
        np.zeros(items, np.int64),
        np.zeros(items, np.int64),
        np.zeros(1, np.int64),
    )


@kernel
def scan(data, bounds, earliest_ms, latest_ms, names, found):  # type: ignore[no-untyped-def]
    """Scan every event `data[bounds[i]:bounds[i + 1]]`; times out of range make an event odd."""
    for i in range(found.states.shape[0]):
        before = found.item_count[0]
        state = _event(data, bounds[i], bounds[i + 1], i, names, found)
        if state == ODD or not earliest_ms <= found.times[i] <= latest_ms[i]:
            state = ODD
            found.times[i] = 0
            for field in range(names.needs.shape[0]):
                found.kinds[field, i] = ABSENT
                found.reals[field, i] = np.nan
            found.item_count[0] = before
        found.states[i] = state


@inlined
def _event(data, at, end, i, names, found):  # type: ignore[no-untyped-def]
    """Scan one event and return its state. Its fields and time are in `found`, unless it is odd."""
    at = space(data, at, end)
    if at >= end or data[at] != _OPEN:
        return ODD
    count = 0
    while True:
        at = _pair(data, space(data, at + 1, end), end, i, count, names, found)
        if at < 0:
            return ODD
        count += 1
        at = space(data, at, end)
        if at < end and data[at] == _CLOSE:
            break
        if at >= end or data[at] != _COMMA:
            return ODD
    if found.kinds[TIME, i] != TEXT or space(data, at + 1, end) != end:
        return ODD
    if found.kinds[ID, i] == TEXT:
        return PLAIN
    return TICK if count == 1 else ODD


@inlined
def _pair(data, at, end, i, count, names, found):  # type: ignore[no-untyped-def]
    """Scan one name and its value; return the end, or -1."""
    if at >= end or data[at] != _QUOTE:
        return -1
    stop, plain = string(data, at + 1, end)
    if not plain:
        return -1
    field = _field(data, at + 1, stop, count, names)
    at = space(data, stop + 1, end)
    if at >= end or data[at] != _COLON:
        return -1
    at = space(data, at + 1, end)
    if at >= end:
        return -1
    if data[at] == _OPEN_ARRAY:
        return _list(data, at, end, i, field, names, found)
    return _single(data, at, end, i, field, names, found)


@inlined
def _single(data, at, end, i, field, names, found):  # type: ignore[no-untyped-def]
    """Scan a value other than an array; return its end, or -1."""
    stop, kind, begin, text_end, real, whole = _scalar(data, at, end)
    if stop < 0 or field < 0:
        return stop
    quoted, need = data[at] == _QUOTE, names.needs[field]
    if need and kind == TEXT and begin < 0:
        return -1
    if field == ID and not (quoted and text_end > begin):
        return -1
    if field == TIME:
        if not whole:
            return -1
        found.times[i] = integer(data, begin, text_end)
    if need & NEEDS_REAL and quoted:
        size, kept, real, _ = number(data, begin, text_end)
        if size != text_end or kept < 0:
            return -1  # Python's float accepts more texts than JSON has numbers
    found.kinds[field, i] = kind
    found.begins[field, i], found.ends[field, i] = begin, text_end
    found.reals[field, i] = real
    return stop


@inlined
def _list(data, at, end, i, field, names, found):  # type: ignore[no-untyped-def]
    """Scan an array of scalars; return its end, or -1."""
    if field in (ID, TIME):
        return -1
    keeps = field >= 0 and names.needs[field] & NEEDS_ITEMS
    first = found.item_count[0]
    at = space(data, at + 1, end)
    empty = at < end and data[at] == _CLOSE_ARRAY
    while not empty:
        at, kind, begin, text_end, _, _ = _scalar(data, at, end)
        if at < 0:
            return -1
        if keeps:
            if kind == TEXT and begin < 0:
                return -1
            item = found.item_count[0]
            found.item_kinds[item] = kind
            found.item_begins[item], found.item_ends[item] = begin, text_end
            found.item_count[0] += 1
        at = space(data, at, end)
        if at < end and data[at] == _CLOSE_ARRAY:
            break
        if at >= end or data[at] != _COMMA:
            return -1
        at = space(data, at + 1, end)
    if field >= 0:
        found.kinds[field, i] = LIST
        found.begins[field, i], found.ends[field, i] = first, found.item_count[0]
        found.reals[field, i] = np.nan
    return at + 1


@inlined
def _scalar(data, at, end):  # type: ignore[no-untyped-def]
    """Scan a scalar and return six facts of it.

    They are its end, or -1; its kind; the begin of its canonical text, -1 if that is not in the
    bytes; the end of that text; its number; and whether it is a whole number of JSON.
    """
    if at >= end:
        return -1, ABSENT, -1, -1, np.nan, False
    first = data[at]
    if first == _QUOTE:
        stop, plain = string(data, at + 1, end)
        if stop < 0:
            return -1, ABSENT, -1, -1, np.nan, False
        return stop + 1, TEXT, at + 1 if plain else -1, stop, np.nan, False
    if first == _MINUS or _ZERO <= first <= _NINE:
        stop, text_end, real, whole = number(data, at, end)
        return stop, TEXT, at if text_end >= 0 else -1, text_end, real, whole
    for begin, size in ((0, 4), (4, 5), (9, 4)):
        if first == _LITERALS[begin] and same(data, at, end - at, _LITERALS, begin, size):
            kind = ABSENT if begin == 9 else TEXT
            return at + size, kind, at, at + size, np.nan, False
    return -1, ABSENT, -1, -1, np.nan, False


@inlined
def _field(data, begin, end, count, names):  # type: ignore[no-untyped-def]
    """Return the declared field of this name, or -1; the field of the last event is tried first."""
    size = end - begin
    guess = names.guesses[count] if count < names.guesses.shape[0] else 0
    for k in range(names.needs.shape[0] + 1):
        field = k - 1 if k else guess
        start = names.bounds[field]
        if names.bounds[field + 1] - start != size:
            continue
        if same(data, begin, size, names.text, start, size):
            if count < names.guesses.shape[0]:
                names.guesses[count] = field
            return field
    return -1
