"""Converts tensors of the Open Inference Protocol v2 to candidates, and scores to tensors.

Every raw field that the model reads is an input tensor of the same name. It has one item per
candidate, or a single item for all of them. A bag is a tensor of two dimensions, candidates by
items. A field that is not sent is missing, as in an event. Two more inputs are optional:
`impression_id` and `timestamp_ms`. The outputs are `score` and `impression_id`.

The data of a tensor are part of the JSON, flat or nested in row-major order. With the binary
extension they follow the JSON: little-endian numbers, or for BYTES each item after its u32 length.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import TIME
from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.ingest.features.fields import FieldSet, Transform
from headrace.ingest.features.hashing import hash_values, hash_whole_numbers, real
from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.requests.candidates import ID
from headrace.serving.requests.request_decoder import check_number, shown

DTYPES = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
}
BYTES = "BYTES"
_FIRST_MS, _LAST_MS = 946_684_800_000, 32_503_680_000_000
_LENGTH = struct.Struct("<I")
_MOST_DIMENSIONS = 8
"""The product of a long shape takes seconds, in which no other thread runs. Fields need two."""


class Input(msgspec.Struct, frozen=True):
    """An input tensor of a request."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Tensor:
    """Values of one input, flat."""

    name: str
    shape: tuple[int, ...]
    values: npt.NDArray[Any] | list[Any]
    """Numbers and booleans as an array, strings as a list."""


class TensorCandidates:
    """Candidates as columns."""

    def __init__(self, count: int, columns: Mapping[str, Tensor], bags: frozenset[str]) -> None:
        self._count, self._columns, self._bags = count, columns, bags

    def __len__(self) -> int:
        return self._count

    def encode(self, encoder: Encoder, now_ms: int) -> Encoded:
        """Return ids and numbers, computed column by column."""
        return encoder.encode_columns(self._count, _Columns(self._columns, now_ms))

    def times(self, now_ms: int) -> npt.NDArray[np.int64]:
        """Return the time of each candidate, shape (n,)."""
        given = self._columns.get(TIME)
        made = np.empty(self._count, np.int64)
        made[:] = now_ms if given is None else given.values
        return made

    def names(self) -> Sequence[str | None]:
        """Return the impression id of each candidate."""
        given = self._columns.get(ID)
        return [None] * self._count if given is None else list(given.values)

    def present(self, sources: Sequence[str]) -> tuple[int, list[int]]:
        """Return the count of candidates, and how many of them have each raw field: all or none."""
        return self._count, [self._count * (source in self._columns) for source in sources]

    def events(self, now_ms: int) -> Iterator[dict[str, object]]:
        """Yield each candidate as an event."""
        columns: dict[str, list[object]] = {TIME: [now_ms]}
        for name, tensor in self._columns.items():
            flat = tensor.values if isinstance(tensor.values, list) else tensor.values.tolist()
            if name in self._bags:
                width = tensor.shape[1]
                flat = [flat[i : i + width] for i in range(0, width * tensor.shape[0], width or 1)]
                flat = flat or [[]] * tensor.shape[0]
            columns[name] = flat
        for i in range(self._count):
            yield {name: values[i if len(values) > 1 else 0] for name, values in columns.items()}


class _Columns:
    """Tensors as columns for the encoder."""

    def __init__(self, columns: Mapping[str, Tensor], now_ms: int) -> None:
        now = Tensor(TIME, (1,), np.array([now_ms]))
        self._columns = {TIME: now, **columns}

    def hashes(self, source: str) -> npt.NDArray[np.uint64]:
        tensor = self._columns.get(source)
        return hash_values([None]) if tensor is None else _hashes(tensor.values)

    def reals(self, source: str) -> npt.NDArray[np.float64]:
        tensor = self._columns.get(source)
        if tensor is None:
            return np.array([math.nan])
        values = tensor.values
        if isinstance(values, list):
            return np.fromiter(map(real, values), np.float64, len(values))
        return values.astype(np.float64)

    def items(self, source: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        tensor = self._columns.get(source)
        if tensor is None:
            return np.zeros(0, np.uint64), np.zeros(1, np.int64)
        count, width = tensor.shape
        return _hashes(tensor.values), np.full(count, width, np.int64)


def _hashes(values: npt.NDArray[Any] | list[Any]) -> npt.NDArray[np.uint64]:
    if not isinstance(values, list) and values.dtype.kind in "iu" and values.dtype != np.uint64:
        return hash_whole_numbers(values.astype(np.int64))
    flat = values if isinstance(values, list) else values.tolist()
    return hash_values(flat) if flat else np.zeros(0, np.uint64)


def inputs_of(fields: FieldSet) -> list[tuple[str, str, list[int]]]:
    """Return name, datatype and shape of the model's inputs."""
    known: dict[str, tuple[str, list[int]]] = {}
    for each in (*fields.numbers, *fields.singles, *fields.bags):
        if each.source in ("", TIME):
            continue
        match each.transform:
            case Transform.BAG:
                known[each.source] = (BYTES, [-1, -1])
            case Transform.ID:
                known.setdefault(each.source, (BYTES, [-1]))
            case _:
                known[each.source] = ("FP64", [-1])
    made = [(name, *rest) for name, rest in sorted(known.items())]
    return [*made, (ID, BYTES, [-1]), (TIME, "INT64", [-1])]


def candidates_of(fields: FieldSet, tensors: Sequence[Tensor], most: int) -> TensorCandidates:
    """Return tensors as candidates. Raises RequestRefused (400), which names the tensor."""
    expected = {name: (kind, shape) for name, kind, shape in inputs_of(fields)}
    bags = frozenset(name for name, (_, shape) in expected.items() if len(shape) == 2)
    columns: dict[str, Tensor] = {}
    for i, tensor in enumerate(tensors):
        where = f"inputs[{i}]"
        if tensor.name not in expected:
            known = f"one of {', '.join(expected)}"
            raise RequestRefused(400, f"{where}.name", known, tensor.name)
        if tensor.name in columns:
            raise RequestRefused(400, f"{where}.name", "each input once", tensor.name)
        columns[tensor.name] = _fitting(tensor, where, tensor.name in bags)
        _check_values(columns[tensor.name], where, expected[tensor.name][0])
    counts = {tensor.shape[0] for tensor in columns.values()}
    count = max(counts, default=0)
    if not 1 <= count <= most:
        raise RequestRefused(400, "inputs", f"tensors of 1 to {most} candidates", f"{count}")
    for i, tensor in enumerate(columns.values()):
        if tensor.shape[0] not in (1, count):
            said = f"{count} items, as in the longest tensor, or 1 for all candidates"
            raise RequestRefused(400, f"inputs[{i}].shape", said, f"{tensor.shape[0]}")
        if tensor.shape[0] != count and tensor.name == ID:
            raise RequestRefused(400, f"inputs[{i}].shape", f"{count} impression ids", "1")
    return TensorCandidates(count, columns, bags)


def _fitting(tensor: Tensor, where: str, bag: bool) -> Tensor:
    """Return a tensor with the dimensions of its field: (n, 1) becomes (n,), and back for bags."""
    shape = tensor.shape
    if bag and len(shape) == 1:
        shape = (shape[0], 1)
    elif not bag and len(shape) == 2 and shape[1] == 1:
        shape = shape[:1]
    if len(shape) != (2 if bag else 1):
        expected = "[candidates, items]" if bag else "[candidates] or [candidates, 1]"
        raise RequestRefused(400, f"{where}.shape", expected, shown(list(shape)))
    return Tensor(tensor.name, shape, tensor.values)


def _check_values(tensor: Tensor, where: str, wanted: str) -> None:
    values = tensor.values
    if tensor.name == ID and not isinstance(values, list):
        raise RequestRefused(400, f"{where}.datatype", BYTES, "numbers")
    if tensor.name == TIME:
        if isinstance(values, list) or values.dtype.kind not in "iu":
            raise RequestRefused(400, f"{where}.datatype", "INT64", "another datatype")
        if values.size and not (values.min() >= _FIRST_MS and values.max() <= _LAST_MS):
            expected = "milliseconds of the years 2000 to 3000"
            raise RequestRefused(400, f"{where}.data", expected, shown(values[:1].tolist()))
    elif wanted == "FP64" and isinstance(values, list):
        for k, value in enumerate(values):
            check_number(value, f"{where}.data[{k}]")


def tensor_of(given: Input, where: str, raw: memoryview | None) -> Tensor:
    """Return the values of an input: from `raw`, or if that is None from the JSON.

    Raises RequestRefused (400).
    """
    if given.datatype != BYTES and given.datatype not in DTYPES:
        known = ", ".join([*DTYPES, BYTES])
        raise RequestRefused(400, f"{where}.datatype", f"one of {known}", given.datatype)
    if not 1 <= len(given.shape) <= _MOST_DIMENSIONS:
        expected = f"1 to {_MOST_DIMENSIONS} sizes"
        raise RequestRefused(400, f"{where}.shape", expected, f"{len(given.shape)}")
    if min(given.shape) < 0:
        raise RequestRefused(400, f"{where}.shape", "sizes of 0 or more", shown(given.shape))
    count, shape = math.prod(given.shape), tuple(given.shape)
    if raw is None:
        return Tensor(given.name, shape, _of_json(given, where, count))
    if given.datatype == BYTES:
        return Tensor(given.name, shape, _of_raw_texts(raw, where, count))
    dtype = DTYPES[given.datatype]
    if raw.nbytes != count * dtype.itemsize:
        expected = f"{count * dtype.itemsize} bytes for {count} {given.datatype}"
        raise RequestRefused(400, f"{where}.parameters.binary_data_size", expected, f"{raw.nbytes}")
    return Tensor(given.name, shape, np.frombuffer(raw, dtype))


def _of_json(given: Input, where: str, count: int) -> npt.NDArray[Any] | list[Any]:
    if given.data is msgspec.UNSET:
        raise RequestRefused(400, f"{where}.data", "data, or a binary_data_size", "neither")
    flat = list(_flat(given.data))
    if len(flat) != count:
        raise RequestRefused(
            400, f"{where}.data", f"{count} values, according to the shape", f"{len(flat)}"
        )
    if "INT" in given.datatype:
        # accept 2.0 for 2: some clients have no integers
        flat = [int(each) if type(each) is float and each.is_integer() else each for each in flat]
    wanted, say = _TYPES[given.datatype if given.datatype in ("BOOL", BYTES) else
                         given.datatype.rstrip("0123456789")]  # fmt: skip
    wrong = next((k for k, value in enumerate(flat) if type(value) not in wanted), None)
    if wrong is not None:
        raise RequestRefused(400, f"{where}.data[{wrong}]", say, shown(flat[wrong]))
    if given.datatype == BYTES:
        return flat
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, DTYPES[given.datatype])
    except OverflowError:
        raise RequestRefused(
            400, f"{where}.data", f"values within {given.datatype}", "a value out of range"
        ) from None


_TYPES: dict[str, tuple[frozenset[type], str]] = {
    "BOOL": (frozenset({bool}), "true or false"),
    "INT": (frozenset({int}), "an integer"),
    "UINT": (frozenset({int}), "an integer"),
    "FP": (frozenset({int, float}), "a number"),
    BYTES: (frozenset({str}), "a string"),
}


def _flat(data: list[Any]) -> Iterator[Any]:
    """Yield the values of nested lists in order."""
    waiting = [iter(data)]
    while waiting:
        for value in waiting[-1]:
            if type(value) is list:
                waiting.append(iter(value))
                break
            yield value
        else:
            waiting.pop()


def _of_raw_texts(raw: memoryview, where: str, count: int) -> list[str]:
    texts: list[str] = []
    at = 0
    while at < raw.nbytes and len(texts) < count:
        if at + _LENGTH.size > raw.nbytes:
            break
        [size] = _LENGTH.unpack_from(raw, at)
        at += _LENGTH.size
        try:
            texts.append(bytes(raw[at : at + size]).decode())
        except UnicodeDecodeError:
            raise RequestRefused(400, f"{where}[{len(texts)}]", "UTF-8", "other bytes") from None
        at += size
    if at != raw.nbytes or len(texts) != count:
        expected = f"{count} strings, each after its length"
        raise RequestRefused(400, where, expected, f"{raw.nbytes} bytes of {len(texts)}")
    return texts


def raw_of(values: npt.NDArray[np.float64] | Sequence[str]) -> bytes:
    """Return a tensor's data as bytes."""
    if isinstance(values, np.ndarray):
        return values.astype("<f8").tobytes()
    encoded = [value.encode() for value in values]
    return b"".join(_LENGTH.pack(len(each)) + each for each in encoded)
