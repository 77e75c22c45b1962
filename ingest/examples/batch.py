"""Labelled examples in columns: what the joiner writes and learners read.

One Kafka message is one batch of one partition, as an Arrow IPC stream. Columns suit both sides,
which are vectorized, and any tool can read Arrow. Values that are the same for the whole batch
(fingerprint, watermark, share of negatives kept) are in the metadata of its schema. The column
`weight` exists if the spec declares weights or down-sampling (`features.example_weights`), or if
a table has weights of its own. Ids and plain numbers are lists of fixed length, so that their
values are one array; bags are lists of lists. `unpack` copies only what Arrow has no array for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ingest.events.contract import LATEST_MS
from headrace.ingest.examples.arrow_batch import UNREADABLE_ARROW, UnreadableBatch, open_batch
from headrace.ingest.examples.continuity import examples_before
from headrace.ingest.features.encoder import Encoded
from headrace.ingest.features.fields import FieldSet

FORMAT = 1
_WEIGHT = "weight"
_SLICE = "slice:"
_COLUMNS = (
    "kinds",
    "labels",
    "event_ms",
    "shown_ms",
    "append_ms",
    "weights",
    "impression_ids",
    "request_ids",
)
"""Columns of the examples themselves, beside those of their features and slices."""
_SPECS = 16
"""Sets of fields whose column types are kept: a process reads one, or a few."""


class UnreadableExamples(ValueError):
    """A message that is not a batch of examples of this model's fields."""


class DamagedExamples(UnreadableExamples):
    """A message that is no batch of examples of any model."""


class Kind(IntEnum):
    """The kind of an example, which decides how it is counted."""

    SHOWN = 0
    """`immediate`: an impression when it is first seen. Label 0, counts as a show."""
    CLICKED = 1
    """`immediate`: its click, with the same ids. Label 1, counts as a click, not as a show."""
    CLOSED = 2
    """`window`: an impression whose window closed. Counts as a show, and as a click if label 1.
    `immediate` with a wait: an impression clicked within it, label 1."""


@dataclass(frozen=True, slots=True)
class Examples:
    """A batch of n examples of one partition, in the order to learn them."""

    fingerprint: str
    """Fingerprint of the spec's fields and label policy."""
    watermark_ms: int
    """Event time that the joiner had reached in this partition."""
    kinds: npt.NDArray[np.uint8]  # (n,) Kind
    labels: npt.NDArray[np.uint8]  # (n,) 0 or 1
    event_ms: npt.NDArray[np.int64]  # (n,) of the impression after its wait, or of the click
    shown_ms: npt.NDArray[np.int64]  # (n,) of the impression
    append_ms: npt.NDArray[np.int64]  # (n,) of the event that made the example
    impression_ids: pa.StringArray  # (n,)
    request_ids: pa.StringArray  # (n,) null where absent
    features: Encoded
    slices: dict[str, pa.Array]  # raw fields by name, for evaluation by their values; each (n,)
    weights: npt.NDArray[np.float32] | None = None  # (n,); None: all 1
    negative_rate: float = 1.0
    """Share of the negatives that was kept; the weights compensate for the others."""
    before: int = -1
    """Examples of the partition before this batch; -1 if not known: see `continuity`."""

    def __len__(self) -> int:
        return int(self.kinds.shape[0])

    @property
    def settled(self) -> npt.NDArray[np.bool_]:
        """Which examples have their final label, as all others of their model have; shape (n,).

        With a wait, the examples that are CLOSED are those with clicks, and later than shown.
        """
        found: npt.NDArray[np.bool_] = self.kinds == Kind.CLOSED
        found &= self.event_ms == self.shown_ms
        return found

    @classmethod
    def empty(cls, fields: FieldSet, watermark_ms: int = 0) -> Examples:
        """Return a batch without examples."""
        none, times = np.zeros(0, np.uint8), np.zeros(0, np.int64)
        features = Encoded(
            np.zeros((0, len(fields.singles)), np.uint64),
            np.zeros(0, np.uint64),
            np.zeros(1, np.int32),
            np.zeros((0, len(fields.numbers)), np.float32),
        )
        strings = pa.array([], pa.string())
        slices = dict.fromkeys(fields.slice_by, strings)
        weights = np.zeros(0, np.float32) if fields.weights.declared else None
        return cls(
            *(fields.fingerprint, watermark_ms, none, none, times, times, times),
            *(strings, strings, features, slices, weights, fields.weights.negative_rate),
        )


class BatchNotes(NamedTuple):
    """Notes of the joiner with a batch: positions of its own, as JSON."""

    checkpoint: str = ""
    """Its position with this batch; in the last batch of a transaction of the partition."""
    until: str = ""
    """The position that the last batch of the same transaction carries; in all the others."""


def pack(examples: Examples, notes: BatchNotes | None = None) -> bytes:
    """Return a batch as an Arrow IPC stream of one record batch."""
    features, count = examples.features, len(examples)
    bags = (features.bag_offsets.shape[0] - 1) // count if count else 0
    items = pa.ListArray.from_arrays(features.bag_offsets, features.bag_ids)
    columns = {
        "kind": pa.array(examples.kinds),
        "label": pa.array(examples.labels),
        "event_ms": pa.array(examples.event_ms),
        "shown_ms": pa.array(examples.shown_ms),
        "append_ms": pa.array(examples.append_ms),
        "impression_id": examples.impression_ids,
        "request_id": examples.request_ids,
        "ids": _rows(pa.array(features.ids.reshape(-1)), features.ids.shape),
        "numbers": _rows(pa.array(features.numbers.reshape(-1)), features.numbers.shape),
        "bags": _rows(items, (count, bags)),
    }
    if examples.weights is not None:
        columns[_WEIGHT] = pa.array(examples.weights)
    columns |= {_SLICE + name: values for name, values in examples.slices.items()}
    batch = pa.record_batch(columns)
    schema = batch.schema.with_metadata(
        {
            "format": str(FORMAT),
            "fingerprint": examples.fingerprint,
            "watermark_ms": str(examples.watermark_ms),
            "negative_rate": str(examples.negative_rate),
            **({"before": str(examples.before)} if examples.before >= 0 else {}),
            **{name: text for name, text in (notes or BatchNotes())._asdict().items() if text},
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(batch.replace_schema_metadata(schema.metadata))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def notes_of(blob: bytes) -> BatchNotes:
    """Return what the joiner noted with a batch. Raises UnreadableExamples."""
    try:
        facts = open_batch(blob).metadata
        return BatchNotes(*(facts.get(name.encode(), b"").decode() for name in BatchNotes._fields))
    except (UnreadableBatch, UnicodeDecodeError) as error:
        raise DamagedExamples(f"expected a batch of examples, got: {error}") from error


def unpack(blob: bytes, fields: FieldSet) -> Examples:
    """Return the batch of `pack`; its arrays are read-only views of `blob`.

    Raises UnreadableExamples for batches made with other fields, DamagedExamples for other bytes.
    """
    try:
        opened = open_batch(blob)
        facts = opened.metadata
        _check_origin(facts, fields)
        types = _types(fields)
        if _WEIGHT in opened.schema.names:  # of a table with weights that the spec does not declare
            types = {**types, _WEIGHT: (pa.float32(),)}
        batch = opened.read(types)
        examples = examples_of(
            batch,
            fields,
            batch["event_ms"].to_numpy(),
            watermark_ms=int(facts[b"watermark_ms"]),
            negative_rate=float(facts.get(b"negative_rate", b"1")),
            before=examples_before(facts),
        )
        _check(examples, fields, batch)
    except UnreadableExamples:
        raise
    except UNREADABLE_ARROW as error:
        raise DamagedExamples(f"expected a batch of examples, got: {error}") from error
    return examples


def _check_origin(facts: Mapping[bytes, bytes], fields: FieldSet) -> None:
    version = facts.get(b"format", b"none").decode()
    if version != str(FORMAT):
        if not version.isdecimal():
            raise DamagedExamples(f"examples: expected format {FORMAT}, got {version}")
        raise UnreadableExamples(
            f"examples: expected format {FORMAT}, got {version}: use the version of headrace that "
            "wrote them, or a newer one"
        )
    fingerprint = facts[b"fingerprint"].decode()
    if fingerprint != fields.fingerprint:
        raise UnreadableExamples(
            f"examples: expected fields with fingerprint {fields.fingerprint} (of the model "
            f"spec in use), got {fingerprint} (of the spec they were joined with)"
        )


@functools.lru_cache(_SPECS)
def _types(fields: FieldSet) -> dict[str, tuple[pa.DataType, ...]]:
    """Return the types that each column may have; a batch without examples has no bags."""
    strings, times = pa.string(), pa.int64()
    items = pa.list_(pa.uint64())
    one_type = {
        "kind": pa.uint8(),
        "label": pa.uint8(),
        "event_ms": times,
        "shown_ms": times,
        "append_ms": times,
        "impression_id": strings,
        "request_id": strings,
        "ids": pa.list_(pa.uint64(), len(fields.singles)),
        "numbers": pa.list_(pa.float32(), len(fields.numbers)),
        **({_WEIGHT: pa.float32()} if fields.weights.declared else {}),
        **{_SLICE + name: strings for name in fields.slice_by},
    }
    bags = pa.list_(items, len(fields.bags)), pa.list_(items, 0)
    return {**{name: (each,) for name, each in one_type.items()}, "bags": bags}


def _check(examples: Examples, fields: FieldSet, batch: pa.RecordBatch) -> None:
    """Check values that kernels rely on, and those that would reach into other examples.

    One time of the year 5000 would expire every row. Raises ValueError.
    """
    count, features = len(examples), examples.features
    if batch["impression_id"].null_count:
        raise ValueError("missing impression ids")
    if count and (int(examples.kinds.max()) > Kind.CLOSED or int(examples.labels.max()) > 1):
        raise ValueError("a kind or label out of range")
    for times in (examples.event_ms, examples.shown_ms, examples.append_ms):
        # as unsigned numbers, negative ones are the largest
        if count and int(times.view(np.uint64).max()) >= LATEST_MS:
            raise ValueError("a time out of range")
    if not (examples.watermark_ms < LATEST_MS and 0.0 < examples.negative_rate <= 1.0):
        raise ValueError(
            f"watermark {examples.watermark_ms}, share of negatives {examples.negative_rate}"
        )
    offsets, bags, items = features.bag_offsets, count * len(fields.bags), features.bag_ids.shape[0]
    if (offsets.shape[0], int(offsets[0]), int(offsets[-1])) != (bags + 1, 0, items):
        raise ValueError(f"offsets of other bags than {bags}, with {items} items")
    weights = examples.weights
    if weights is not None and count and not 0.0 <= float(weights.min()) <= weights.max() < np.inf:
        raise ValueError("a weight out of range")


def examples_of(
    batch: pa.RecordBatch,
    fields: FieldSet,
    event_ms: npt.NDArray[np.int64],
    *,
    watermark_ms: int,
    negative_rate: float,
    before: int = -1,
) -> Examples:
    """Return the examples in the columns of `pack`; event_ms: (n,) the column of that name."""
    return Examples(
        fingerprint=fields.fingerprint,
        watermark_ms=watermark_ms,
        kinds=batch["kind"].to_numpy(),
        labels=batch["label"].to_numpy(),
        event_ms=event_ms,
        shown_ms=batch["shown_ms"].to_numpy(),
        append_ms=batch["append_ms"].to_numpy(),
        impression_ids=batch["impression_id"],
        request_ids=batch["request_id"],
        features=_features(batch, fields),
        slices={name: batch[_SLICE + name] for name in fields.slice_by},
        weights=batch[_WEIGHT].to_numpy() if _WEIGHT in batch.schema.names else None,
        negative_rate=negative_rate,
        before=before,
    )


def concatenate(batches: list[Examples]) -> Examples:
    """Return one or more batches of one partition as one batch, in their order."""
    if len(batches) == 1:
        return batches[0]
    parts = [batch.features for batch in batches]
    starts = np.cumsum([0] + [part.bag_ids.shape[0] for part in parts])
    offsets = [part.bag_offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
    features = Encoded(
        ids=np.concatenate([part.ids for part in parts]),
        bag_ids=np.concatenate([part.bag_ids for part in parts]),
        bag_offsets=np.concatenate([*offsets, starts[-1:]]).astype(np.int32),
        numbers=np.concatenate([part.numbers for part in parts]),
    )
    return made_of(batches, features, _concatenated)


def reordered(examples: Examples, order: npt.NDArray[np.int64]) -> Examples:
    """Return the examples at these places, in this order, with the items of their bags."""
    places = pa.array(order)

    def chosen(columns: Sequence[Any]) -> Any:
        [column] = columns
        return column[order] if isinstance(column, np.ndarray) else column.take(places)

    return made_of([examples], _reordered_features(examples.features, order), chosen)


def made_of(
    batches: Sequence[Examples], features: Encoded, column_of: Callable[[Sequence[Any]], Any]
) -> Examples:
    """Return a batch of these features with the facts of the last of the batches.

    column_of: makes a column of it from the same column of the batches.
    """
    last = batches[-1]
    columns = {
        name: column_of([getattr(each, name) for each in batches])
        for name in _COLUMNS
        if getattr(last, name) is not None
    }
    slices = {name: column_of([each.slices[name] for each in batches]) for name in last.slices}
    return replace(last, features=features, slices=slices, before=-1, **columns)


def _concatenated(columns: Sequence[Any]) -> Any:
    many = np.concatenate if isinstance(columns[0], np.ndarray) else pa.concat_arrays
    return many(columns)


def _reordered_features(features: Encoded, order: npt.NDArray[np.int64]) -> Encoded:
    count = len(features)
    ids, numbers, begins = features.ids[order], features.numbers[order], features.bag_offsets[:-1]
    if not begins.shape[0]:
        return Encoded(ids, features.bag_ids[:0], np.zeros(1, np.int32), numbers)
    lengths = np.diff(features.bag_offsets).reshape(count, -1)[order].reshape(-1)
    begins = begins.reshape(count, -1)[order].reshape(-1)
    offsets = np.zeros(lengths.shape[0] + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    items = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Encoded(ids, features.bag_ids[items], offsets, numbers)


def _rows(values: pa.Array, shape: tuple[int, ...]) -> pa.Array:
    """Return `values` as `shape[0]` lists of `shape[1]` values each; the width may be 0."""
    count, width = shape
    kind = pa.list_(values.type, width)
    if width:
        return pa.FixedSizeListArray.from_arrays(values, width)
    return pa.Array.from_buffers(kind, count, [None], children=[values])


def _features(batch: pa.RecordBatch, fields: FieldSet) -> Encoded:
    count = batch.num_rows
    items = batch["bags"].values
    if fields.bags and count:
        offsets, bag_ids = items.offsets.to_numpy(), items.values.to_numpy()
    else:
        offsets, bag_ids = np.zeros(1, np.int32), np.zeros(0, np.uint64)
    return Encoded(
        ids=batch["ids"].values.to_numpy().reshape(count, len(fields.singles)),
        bag_ids=bag_ids,
        bag_offsets=offsets,
        numbers=batch["numbers"].values.to_numpy().reshape(count, len(fields.numbers)),
    )
