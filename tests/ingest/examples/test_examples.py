"""Tests packing and unpacking of examples."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.examples.batch import (
    DamagedExamples,
    Examples,
    UnreadableExamples,
    concatenate,
    pack,
    unpack,
)
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.joiner.core.input import EventSide
from tests.ingest.joiner.partition import Partition, clicked, fields_of, records, shown, tick


def _joined(count: int, first: int = 0) -> Examples:
    """Return shows and clicks of `count` impressions, with bags of all sizes and nulls."""
    partition = Partition()
    impressions = [
        shown(
            f"i{i}",
            i,
            user=i % 3,
            price=i / 2,
            tags=list(range(i % 4)),
            words=["w"] * (i % 2),
            device=None if i % 5 == 0 else i,
            request_id=None if i % 3 == 0 else f"r{i}",
        )
        for i in range(first, first + count)
    ]
    clicks = [clicked(f"i{i}", i) for i in range(first, first + count, 2)]
    for side, values in ((EventSide.IMPRESSIONS, impressions), (EventSide.CLICKS, clicks)):
        partition.offer(side, records(side, [*values, tick(1000)]))
    return partition.joiner.advance(0).examples


def _same(one: Examples, other: Examples) -> None:
    for name in ("kinds", "labels", "event_ms", "shown_ms", "append_ms"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in ("ids", "bag_ids", "bag_offsets", "numbers"):
        np.testing.assert_array_equal(getattr(one.features, name), getattr(other.features, name))
        assert getattr(one.features, name).dtype == getattr(other.features, name).dtype
        assert getattr(one.features, name).shape == getattr(other.features, name).shape
    assert one.impression_ids.equals(other.impression_ids)
    assert one.request_ids.equals(other.request_ids)
    assert {name: each.to_pylist() for name, each in one.slices.items()} == {
        name: each.to_pylist() for name, each in other.slices.items()
    }
    assert (one.fingerprint, one.watermark_ms) == (other.fingerprint, other.watermark_ms)


@given(st.integers(0, 40))
def test_unpacking_a_batch_of_examples_returns_what_was_packed(count: int) -> None:
    examples = _joined(count)
    assert len(examples) == count + (count + 1) // 2
    _same(unpack(pack(examples), fields_of()), examples)


def test_unpacking_a_batch_of_examples_copies_no_column() -> None:
    blob = pack(_joined(20))
    examples, whole = unpack(blob, fields_of()), np.frombuffer(blob, np.uint8)
    for array in (examples.features.ids, examples.features.bag_ids, examples.event_ms):
        assert np.shares_memory(array, whole)


def test_examples_of_a_model_with_one_field_are_packed_and_unpacked() -> None:
    where = SpecText("m", '[fields.price]\nnumber = 1\ntransform = "number"\n')
    fields: FieldSet = parse_fields(where.tables(), where)
    empty = Examples.empty(fields)
    assert unpack(pack(empty), fields).features.ids.shape == (0, 0)


@given(st.integers(1, 10), st.integers(1, 10), st.integers(0, 10))
def test_concatenated_batches_equal_the_batch_of_all_examples(
    one: int, two: int, three: int
) -> None:
    parts = [_joined(one), _joined(two, 20), _joined(three, 40)]
    whole = concatenate(parts)
    assert len(whole) == sum(map(len, parts))
    for name in ("kinds", "event_ms"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), joined)
    begin = 0
    for part in parts:
        for i in range(len(part)):
            for j in range(2):
                here, there = 2 * (begin + i) + j, 2 * i + j
                assert _bag(whole, here) == _bag(part, there)
        begin += len(part)
    _same(unpack(pack(whole), fields_of()), whole)


def _bag(examples: Examples, place: int) -> list[int]:
    ends = examples.features.bag_offsets
    bag: list[int] = examples.features.bag_ids[ends[place] : ends[place + 1]].tolist()
    return bag


def test_examples_of_other_fields_are_refused_naming_both_fingerprints() -> None:
    window = fields_of("window")
    with pytest.raises(UnreadableExamples) as caught:
        unpack(pack(_joined(3)), window)
    assert window.fingerprint in str(caught.value)
    assert fields_of().fingerprint in str(caught.value)


def test_a_message_that_is_not_a_batch_of_examples_is_refused() -> None:
    for blob in (b"", b"nonsense", pack(_joined(3))[:100]):
        with pytest.raises(UnreadableExamples, match="expected a batch of examples"):
            unpack(blob, fields_of())
    sink = pa.BufferOutputStream()
    other = pa.record_batch({"a": [1]})
    with pa.ipc.new_stream(sink, other.schema) as stream:
        stream.write_batch(other)
    with pytest.raises(UnreadableExamples, match="expected format 1, got none"):
        unpack(sink.getvalue().to_pybytes(), fields_of())


def _with(blob: bytes, place: int, value: bytes) -> bytes:
    return blob[:place] + value + blob[place + len(value) :]


def _place_of(blob: bytes, column: np.ndarray) -> int:
    """Return the place of an unpacked column in the message."""
    return int(column.ctypes.data - np.frombuffer(blob, np.uint8).ctypes.data)


def test_a_batch_with_one_damaged_value_is_refused() -> None:
    blob = pack(_joined(20))
    sound = unpack(blob, fields_of())
    offsets, ids = sound.features.bag_offsets, sound.impression_ids.buffers()
    strings = ids[1].address - np.frombuffer(blob, np.uint8).ctypes.data
    wrong = {
        "a negative offset of a bag": (_place_of(blob, offsets) + 8, b"\xff\xff\xff\xff"),
        "an offset of a bag beyond its items": (_place_of(blob, offsets) + 8, b"\xff\xff\xff\x7f"),
        "a first bag that does not begin at 0": (_place_of(blob, offsets), b"\x01\x00\x00\x00"),
        "a label of 2": (_place_of(blob, sound.labels), b"\x02"),
        "an unknown kind": (_place_of(blob, sound.kinds), b"\x03"),
        "a time before 1970": (_place_of(blob, sound.event_ms) + 7, b"\xff"),
        "a time beyond the year 3000": (_place_of(blob, sound.append_ms) + 7, b"\x01"),
        "an id that ends before it begins": (strings + 4, b"\xff\xff\xff\x7f"),
    }
    for what, (place, value) in wrong.items():
        with pytest.raises(DamagedExamples, match="expected a batch of examples"):
            pytest.fail(f"{what}: {unpack(_with(blob, place, value), fields_of())}")


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_batch_is_refused_because_it_may_unpack_to_any_size(codec: str) -> None:
    batch = pa.ipc.open_stream(pack(_joined(20))).read_next_batch()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch)
    with pytest.raises(DamagedExamples, match="without compression"):
        unpack(sink.getvalue().to_pybytes(), fields_of())
