"""Reads the raw fields of events from Arrow columns: a table is encoded without Python values.

A value means what it means in an event: `Encoder` gives a row of a table the same ids and numbers
as an event with the same values (tests/ingest/features/test_arrow_columns.py holds it). Null, NaN
and infinity are absent, because JSON has none of the two numbers. Times and dates are their text.
"""

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.ingest.features.cells.values import is_list, values_of
from headrace.ingest.features.hashing import (
    ABSENT,
    hash_integers,
    hash_strings,
    hash_values,
    real,
)

Ids = npt.NDArray[np.uint64]


class ArrowColumns:
    """The columns of n events, for `Encoder.encode_columns`. A missing column is absent n times.

    Raises TypeError for a column of a type that no event can have (objects).
    """

    def __init__(self, count: int, columns: Mapping[str, pa.Array]) -> None:
        """columns: each (count,); chunked arrays are not accepted."""
        self._count = count
        self._columns = {name: _plain(name, values) for name, values in columns.items()}

    def hashes(self, source: str) -> Ids:
        """Return the hash of each value's canonical text, ABSENT if it has none; (n,)."""
        values = self._columns.get(source)
        if values is None or is_list(values.type):
            return np.full(self._count, ABSENT, np.uint64)
        return _hashes(values)

    def reals(self, source: str) -> npt.NDArray[np.float64]:
        """Return each value as a number, NaN if it is not one; (n,)."""
        values = self._columns.get(source)
        if values is not None and (pt.is_integer(values.type) or pt.is_floating(values.type)):
            numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            return np.asarray(numbers, np.float64)
        if values is not None and pt.is_string(values.type):
            found = values.dictionary_encode()
            known = np.array([*map(real, found.dictionary.to_pylist()), math.nan])
            places: npt.NDArray[np.int64] = found.indices.fill_null(-1).to_numpy()
            return known[places]
        return np.full(self._count, math.nan)

    def items(self, source: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the hashes of the items of all values, in order, and the number of each value."""
        values = self._columns.get(source)
        if values is None:
            return np.zeros(0, np.uint64), np.zeros(self._count, np.int64)
        if not is_list(values.type):
            present = values.is_valid().to_numpy(zero_copy_only=False)
            return _hashes(values.drop_null()), present.astype(np.int64)
        lengths = pc.list_value_length(values).fill_null(0).to_numpy()
        return _hashes(_plain(source, values.flatten())), lengths.astype(np.int64)


def _hashes(values: pa.Array) -> Ids:
    """Return the hashes of an array that `_plain` made."""
    if pt.is_string(values.type):
        return hash_strings(values)
    if pt.is_integer(values.type):
        try:
            return hash_integers(values.cast(pa.int64()))
        except pa.ArrowInvalid:  # a number above 2^63
            return hash_strings(values.cast(pa.string()))
    # few values as a rule, or an id that is worth its own hash anyway
    found = values.dictionary_encode()
    known = np.append(hash_values(found.dictionary.to_pylist()), ABSENT)
    places: npt.NDArray[np.int64] = found.indices.fill_null(-1).to_numpy()
    return known[places]


def _plain(name: str, values: pa.Array) -> pa.Array:
    """Return a column as strings, integers, floats, booleans or lists of them."""
    found = values_of(values)
    kind = found.type
    if pt.is_null(kind):
        return found.cast(pa.string())
    if pt.is_string(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
        return found
    if is_list(kind) and not pt.is_nested(kind.value_type):
        return found
    raise TypeError(
        f"column {name!r}: expected texts, numbers, booleans, times or lists of them, got {kind}"
    )
