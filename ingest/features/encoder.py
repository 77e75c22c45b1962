"""Encodes events as ids and numbers, column by column.

Every field is extracted from all events of a batch at once, written as canonical text by Arrow, and
hashed by one compiled loop. The joiner (whole batches of events) and the server (one context, many
candidates) use the same encoder, so served features are the learned ones.

A value of an unexpected shape is data, not an error. For a single-valued field an array or object
is absent. For a logarithm a value that is not a number is absent. For a plain number it is 0.0. For
a bag a scalar is a bag of one, and null items of an array count as absent ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.features.fields import Field, FieldSet, Transform
from headrace.ingest.features.hashing import (
    ABSENT,
    Numbered,
    Numbering,
    field_ids,
    hash_value,
    hash_values,
    hash_whole_numbers,
    number_fields,
    numbering,
    real,
)

Ids = npt.NDArray[np.uint64]

Event = Mapping[str, object]

_HOUR_MS = 3_600_000
_FEW = 32
"""Values that are read faster one by one than by Arrow."""
_REMEMBERED = 1 << 12
"""Numbers whose bucket is cached."""
_PLAIN_NUMBER = 2.0**52
"""Below it a float, its whole part and the bucket are exact."""
_NO_IDS, _NO_OFFSETS = np.zeros(0, np.uint64), np.zeros(1, np.int32)
_NO_NUMBERS = np.zeros((1, 0), np.float32)
_NO_IDS.flags.writeable = _NO_OFFSETS.flags.writeable = _NO_NUMBERS.flags.writeable = False


class RawColumns(Protocol):
    """The raw fields of n events. A column with one value has that value n times."""

    def hashes(self, source: str) -> Ids:
        """Return the hash of each value's canonical text, ABSENT if it has none; (n,) or (1,)."""

    def reals(self, source: str) -> npt.NDArray[np.float64]:
        """Return each value as a number, NaN if it is not one; (n,) or (1,)."""

    def items(self, source: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the hashes of the items of all values, in order, and the number of each value."""


class Encoder:
    """Turns the raw fields of events into the ids and numbers of a model."""

    def __init__(self, fields: FieldSet) -> None:
        self.fields = fields
        self._valued = [field for field in fields.singles if field.transform is not Transform.CROSS]
        self._numbering = _numbering(fields.singles, self._valued)
        self._sources = [
            (field.source, None if field.transform is Transform.ID else field)
            for field in self._valued
        ]

    def encode(self, events: Sequence[Event]) -> Encoded:
        """Return the fields of `events`, n rows. Never fails on the content of an event."""
        return self.encode_columns(len(events), _Values(_column_of(events)))

    def encode_candidates(self, context: Event, candidates: Sequence[Event]) -> Encoded:
        """Return the fields of candidates shown in one context, one row each.

        A field that no candidate has comes from the context and is encoded once. The value of a
        candidate takes precedence over the context's.
        """
        count = len(candidates)
        if count == 1:
            return self.encode_few([{**context, **candidates[0]}])
        of_candidates = {name for candidate in candidates for name in candidate}
        own = _column_of(candidates)

        def column(source: str) -> list[object]:
            if source not in of_candidates:
                return [context.get(source)]
            if source in context:
                common = context[source]
                return [candidate.get(source, common) for candidate in candidates]
            return own(source)

        return self.encode_columns(count, _Values(column))

    def encode_columns(self, count: int, columns: RawColumns) -> Encoded:
        """Return the fields of `count` events given by their columns."""
        hashes = np.empty((len(self._valued), count), np.uint64)
        known: dict[str, Ids] = {}  # by raw field: several fields may have the same one
        for row, field in enumerate(self._valued):
            hashes[row] = _hashes(field, columns, known)
        return self._encoded(hashes, columns)

    def encode_few(self, events: Sequence[Event]) -> Encoded:
        """Return what `encode` returns; faster for a few events: it makes no array for a field."""
        hashes = [
            [
                hash_value(event.get(source)) if field is None else _hash(field, event.get(source))
                for source, field in self._sources
            ]
            for event in events
        ]
        by_field = np.ascontiguousarray(np.array(hashes, np.uint64).T)
        return self._encoded(by_field, _Values(_column_of(events)))

    def _encoded(self, hashes: Ids, columns: RawColumns) -> Encoded:
        count = hashes.shape[1]
        ids = number_fields(hashes, self._numbering)
        return Encoded(ids, *self._bags(count, columns), self._numbers(count, columns))

    def _numbers(self, count: int, columns: RawColumns) -> npt.NDArray[np.float32]:
        fields = self.fields.numbers
        if not fields and count == 1:
            return _NO_NUMBERS
        numbers = np.empty((count, len(fields)), np.float32)
        for j, field in enumerate(fields):
            numbers[:, j] = _plain(field, columns.reals(field.source))
        return numbers

    def _bags(self, count: int, columns: RawColumns) -> tuple[Ids, npt.NDArray[np.int32]]:
        bags = self.fields.bags
        if not bags:
            return _NO_IDS, _NO_OFFSETS
        flat, lengths = [], np.empty((count, len(bags)), np.int64)
        for j, bag in enumerate(bags):
            if bag.transform is Transform.HISTORY:  # the learner and the server have its items
                lengths[:, j] = 0
                flat.append(_NO_IDS)
                continue
            hashes, lengths[:, j] = _last_items(*columns.items(bag.source), bag.last)
            if hashes.shape[0] != lengths[:, j].sum():
                hashes = np.tile(hashes, count)  # one value, for all events
            flat.append(field_ids(hashes, bag.number))
        offsets = np.zeros(count * len(bags) + 1, np.int32)
        np.cumsum(lengths.reshape(-1), out=offsets[1:])
        if len(bags) == 1:
            return flat[0], offsets
        # from bag by bag to event by event: each run of items moves to where its event begins
        ids = np.empty(int(offsets[-1]), np.uint64)
        for j, hashes in enumerate(flat):
            begins = offsets[j : -1 : len(bags)].astype(np.int64)
            own = np.cumsum(lengths[:, j]) - lengths[:, j]
            ids[np.repeat(begins - own, lengths[:, j]) + np.arange(hashes.shape[0])] = hashes
        return ids, offsets


class _Values:
    """Raw columns of Python values."""

    def __init__(self, column: Callable[[str], list[object]]) -> None:
        self._column = column

    def hashes(self, source: str) -> Ids:
        return hash_values(self._column(source))

    def reals(self, source: str) -> npt.NDArray[np.float64]:
        return _reals(self._column(source))

    def items(self, source: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        items = [_items(value) for value in self._column(source)]
        lengths = np.fromiter(map(len, items), np.int64, len(items))
        return hash_values(list(itertools.chain.from_iterable(items))), lengths


def _hash(field: Field, value: object) -> int:
    """Return what `_hashes` returns for one value of a field that is made of numbers."""
    whole = _whole(field, real(value))
    if whole is None:
        [hashed] = _hashes(field, _Values(lambda _: [value]), {}).tolist()
        return int(hashed)
    return hash_value(whole)


def _hashes(field: Field, columns: RawColumns, known: dict[str, Ids]) -> Ids:
    """Return the hash of each event's value in a field other than a cross; (n,) or (1,)."""
    if field.transform is Transform.ID:
        found = known.get(field.source)
        if found is None:
            found = known[field.source] = columns.hashes(field.source)
        return found
    values = columns.reals(field.source)
    if values.shape[0] == 1:
        whole = _whole(field, float(values[0]))
        if whole is not None:
            return np.array([hash_value(whole)], np.uint64)
    # infinity, which JSON lacks but Python's reader accepts, gives NaN here: absent
    with np.errstate(over="ignore", invalid="ignore"):
        if field.transform is Transform.LOG_BUCKET:
            buckets = np.floor(field.per_doubling * np.log2(1.0 + np.abs(values)))
            # mirrored: -x is as far below zero as x is above, and 0 has one bucket
            numbers = np.where(values < 0, -1.0 - buckets, buckets)
        elif field.transform is Transform.PERIOD:
            numbers = np.floor((values / 1000.0 + field.offset_s) / field.period_s)
        else:
            numbers = np.floor(values / _HOUR_MS + field.utc_offset_h) % 24
    return _hash_whole(numbers)


def _whole(field: Field, value: float) -> int | None:
    """Return the number that `_hashes` hashes for one value; None if only arrays handle it."""
    if not abs(value) < _PLAIN_NUMBER:
        return None  # not a number, or one beyond the exact range
    if field.transform is Transform.LOG_BUCKET:
        return _log_bucket(field.per_doubling, value)
    if field.transform is Transform.PERIOD:
        return math.floor((value / 1000.0 + field.offset_s) / field.period_s)
    return math.floor(value / _HOUR_MS + field.utc_offset_h) % 24


@lru_cache(_REMEMBERED)
def _log_bucket(per_doubling: float, value: float) -> int:
    """Return the bucket of one value; cached, because contexts repeat their values."""
    bucket = math.floor(per_doubling * float(np.log2(1.0 + abs(value))))
    return -1 - bucket if value < 0 else bucket


def _hash_whole(values: npt.NDArray[np.float64]) -> Ids:
    """Hash whole numbers as their canonical texts; values that are not finite are absent."""
    finite = np.isfinite(values)
    if finite.all():
        return hash_whole_numbers(values.astype(np.int64))
    hashes = hash_whole_numbers(np.where(finite, values, 0.0).astype(np.int64))
    hashes[~finite] = ABSENT
    return hashes


def _plain(field: Field, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    numbers = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    if field.log1p:
        numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
    largest = float(np.finfo(np.float32).max)
    return np.clip(numbers, -largest, largest).astype(np.float32)


def _reals(values: list[object]) -> npt.NDArray[np.float64]:
    """Return the numbers of a column, NaN where missing. The text of a number is a number."""
    if len(values) > _FEW and not set(map(type, values)) - {int, float, type(None)}:
        try:
            column = pa.array(values, pa.float64())
            return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
        except pa.ArrowInvalid:
            pass  # a whole number above 2^53, which Arrow does not round
    return np.fromiter(map(real, values), np.float64, len(values))


def _items(value: object) -> list[object]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _last_items(
    hashes: Ids, lengths: npt.NDArray[np.int64], last: int
) -> tuple[Ids, npt.NDArray[np.int64]]:
    """Return the last items of each array; all of them if `last` is 0."""
    if not last or not (lengths > last).any():
        return hashes, lengths
    ages = np.repeat(np.cumsum(lengths), lengths) - np.arange(hashes.shape[0])  # from 1
    return hashes[ages <= last], np.minimum(lengths, last)


def _column_of(events: Sequence[Event]) -> Callable[[str], list[object]]:
    def column(source: str) -> list[object]:
        return [event.get(source) for event in events]

    return column


def _numbering(fields: Sequence[Field], valued: Sequence[Field]) -> Numbering:
    place = {field.name: i for i, field in enumerate(fields)}
    row = {field.name: i for i, field in enumerate(valued)}
    return numbering(
        [
            Numbered(
                field.number,
                place[field.name],
                row.get(field.name, -1),
                [place[name] for name in field.of],
            )
            for field in _parts_first(fields)
        ]
    )


def _parts_first(fields: Sequence[Field]) -> list[Field]:
    """Return `fields` so that every cross comes after the fields it combines."""
    ordered: list[Field] = []
    done: set[str] = set()
    waiting = list(fields)
    while waiting:
        ready = [field for field in waiting if done.issuperset(field.of)]
        if not ready:
            names = [field.name for field in waiting]
            raise ValueError(f"expected crosses without cycles, got {names}, which form one")
        ordered += ready
        done.update(field.name for field in ready)
        waiting = [field for field in waiting if field.name not in done]
    return ordered


@dataclass(frozen=True, slots=True)
class Encoded:
    """Fields of n events as ids and numbers, with columns in the order of the `FieldSet`."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    bag_ids: npt.NDArray[np.uint64]  # (total,) all bags' items, event by event, bag by bag
    bag_offsets: npt.NDArray[np.int32]  # (n * bags + 1,) event i, bag j: [i * bags + j]
    numbers: npt.NDArray[np.float32]  # (n, numbers)

    def __len__(self) -> int:
        return int(self.ids.shape[0])
