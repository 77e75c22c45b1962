"""Events to ids and numbers, column by column.

Every field is taken out of all events of a batch at once, written as canonical text by Arrow, and
hashed by one compiled loop. The same encoder serves the joiner (whole batches of events) and the
server (one context, many candidates), so that what is asked for is what was learned.

An event whose value has not the shape its field wants is data, not an error: where a single value
is wanted, an array or object is absent, and so is what is no number where a logarithm is wanted;
where a plain number is wanted it is 0.0; where a bag is wanted a scalar is a bag of one, and null
items of an array count as absent ones.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.ingest.features.fields import Field, FieldSet, Transform
from headrace.ingest.features.hashing import (
    ABSENT,
    Numbered,
    field_ids,
    hash_value,
    hash_values,
    hash_whole_numbers,
    number_fields,
    numbering,
    real,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from headrace.ingest.features.hashing import Numbering

    Ids = npt.NDArray[np.uint64]

Event: TypeAlias = "Mapping[str, object]"

_HOUR_MS = 3_600_000
_FEW = 32
"""Values that are read one by one sooner than Arrow has begun."""
_REMEMBERED = 1 << 12
"""Numbers whose bucket is remembered."""
_PLAIN_NUMBER = 2.0**52
"""Below it a float and its whole part are exact, and so is what is made of them here."""
_NO_IDS, _NO_OFFSETS = np.zeros(0, np.uint64), np.zeros(1, np.int32)
_NO_NUMBERS = np.zeros((1, 0), np.float32)
_NO_IDS.flags.writeable = _NO_OFFSETS.flags.writeable = _NO_NUMBERS.flags.writeable = False


class RawColumns(Protocol):
    """The raw fields of n events. A column of one value stands for n times that value."""

    def hashes(self, source: str) -> Ids:
        """Return the hash of each value's canonical text, ABSENT if it has none; (n,) or (1,)."""

    def reals(self, source: str) -> npt.NDArray[np.float64]:
        """Return each value as a number, NaN if it is none; (n,) or (1,)."""

    def items(self, source: str) -> tuple[Ids, npt.NDArray[np.int64]]:
        """Return the hashes of the items of all values, in order, and how many each has."""


class Encoder:
    """Turns the raw fields of events into the ids and numbers of a model."""

    def __init__(self, fields: FieldSet) -> None:
        self.fields = fields
        self._valued = [each for each in fields.singles if each.transform is not Transform.CROSS]
        self._numbering = _numbering(fields.singles, self._valued)
        self._sources = [
            (each.source, None if each.transform is Transform.ID else each) for each in self._valued
        ]

    def encode(self, events: Sequence[Event]) -> Encoded:
        """Return the fields of `events`, n rows. Never fails on what an event holds."""
        return self.encode_columns(len(events), _Values(_column_of(events)))

    def encode_candidates(self, context: Event, candidates: Sequence[Event]) -> Encoded:
        """Return the fields of candidates shown in one context, a row each.

        A field that no candidate has comes from the context and is encoded once; a candidate's own
        value goes before the context's.
        """
        count = len(candidates)
        if count == 1:
            return self.encode_few([{**context, **candidates[0]}])
        of_candidates = {name for each in candidates for name in each}
        whole = _column_of(candidates)

        def column(source: str) -> list[object]:
            if source not in of_candidates:
                return [context.get(source)]
            if source in context:
                common = context[source]
                return [each.get(source, common) for each in candidates]
            return whole(source)

        return self.encode_columns(count, _Values(column))

    def encode_columns(self, count: int, columns: RawColumns) -> Encoded:
        """Return the fields of `count` events given by their columns."""
        hashes = np.empty((len(self._valued), count), np.uint64)
        known: dict[str, Ids] = {}  # by raw field: several fields may take the same
        for row, field in enumerate(self._valued):
            hashes[row] = _hashes(field, columns, known)
        return self._encoded(hashes, columns)

    def encode_few(self, events: Sequence[Event]) -> Encoded:
        """Return what `encode` does of one event or more, sooner of a few: no array a field."""
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
            hashes, lengths[:, j] = columns.items(bag.source)
            if hashes.shape[0] != lengths[:, j].sum():
                hashes = np.tile(hashes, count)  # one value, which stands for all
            flat.append(field_ids(hashes, bag.number))
        offsets = np.zeros(count * len(bags) + 1, np.int32)
        np.cumsum(lengths.reshape(-1), out=offsets[1:])
        if len(bags) == 1:
            return flat[0], offsets
        # from bag by bag to event by event: each run of items goes where its event begins
        ids = np.empty(int(offsets[-1]), np.uint64)
        for j, made in enumerate(flat):
            begins = offsets[j : -1 : len(bags)].astype(np.int64)
            own = np.cumsum(lengths[:, j]) - lengths[:, j]
            ids[np.repeat(begins - own, lengths[:, j]) + np.arange(made.shape[0])] = made
        return ids, offsets


class _Values:
    """RawColumns of Python values."""

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
    """Return what `_hashes` does of one value, of a field that is made of numbers."""
    whole = _whole(field, real(value))
    if whole is None:
        [hashed] = _hashes(field, _Values(lambda _: [value]), {}).tolist()
        return int(hashed)
    return hash_value(whole)


def _hashes(field: Field, columns: RawColumns, known: dict[str, Ids]) -> Ids:
    """Return the hash of what each event has in a field that is no cross; (n,) or (1,)."""
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
    # of infinity, which JSON has not but Python's reader of it lets in, comes none: absent
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
    """Return what `_hashes` hashes of one value, sooner than arrays do; None: let them."""
    if not abs(value) < _PLAIN_NUMBER:
        return None  # no number, or one that needs care
    if field.transform is Transform.LOG_BUCKET:
        return _log_bucket(field.per_doubling, value)
    if field.transform is Transform.PERIOD:
        return math.floor((value / 1000.0 + field.offset_s) / field.period_s)
    return math.floor(value / _HOUR_MS + field.utc_offset_h) % 24


@lru_cache(_REMEMBERED)
def _log_bucket(per_doubling: float, value: float) -> int:
    """Return the bucket of one value; remembered, since contexts have the same again and again."""
    bucket = math.floor(per_doubling * float(np.log2(1.0 + abs(value))))
    return -1 - bucket if value < 0 else bucket


def _hash_whole(values: npt.NDArray[np.float64]) -> Ids:
    """Hash whole numbers as their canonical texts; what is not finite is absent."""
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
    """Return the numbers of a column, NaN where there is none. The text of a number is one."""
    if len(values) > _FEW and not set(map(type, values)) - {int, float, type(None)}:
        try:
            column = pa.array(values, pa.float64())
            return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
        except pa.ArrowInvalid:
            pass  # a whole number above 2^53, which Arrow won't round
    return np.fromiter(map(real, values), np.float64, len(values))


def _items(value: object) -> list[object]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _column_of(events: Sequence[Event]) -> Callable[[str], list[object]]:
    def column(source: str) -> list[object]:
        return [event.get(source) for event in events]

    return column


def _numbering(fields: Sequence[Field], valued: Sequence[Field]) -> Numbering:
    place = {each.name: i for i, each in enumerate(fields)}
    row = {each.name: i for i, each in enumerate(valued)}
    return numbering(
        [
            Numbered(
                each.number,
                place[each.name],
                row.get(each.name, -1),
                [place[name] for name in each.of],
            )
            for each in _parts_first(fields)
        ]
    )


def _parts_first(fields: Sequence[Field]) -> list[Field]:
    """Return `fields` such that every cross comes after what it combines."""
    ordered: list[Field] = []
    done: set[str] = set()
    waiting = list(fields)
    while waiting:
        ready = [field for field in waiting if done.issuperset(field.of)]
        if not ready:
            raise ValueError(f"crosses that contain each other: {[each.name for each in waiting]}")
        ordered += ready
        done.update(field.name for field in ready)
        waiting = [field for field in waiting if field.name not in done]
    return ordered


@dataclass(frozen=True, slots=True)
class Encoded:
    """Fields of n events as ids and numbers. RawColumns in the order of the spec's `FieldSet`."""

    ids: npt.NDArray[np.uint64]  # (n, singles)
    bag_ids: npt.NDArray[np.uint64]  # (total,) all bags' items, event by event, bag by bag
    bag_offsets: npt.NDArray[np.int32]  # (n * bags + 1,) event i, bag j: [i * bags + j]
    numbers: npt.NDArray[np.float32]  # (n, numbers)

    def __len__(self) -> int:
        return int(self.ids.shape[0])
