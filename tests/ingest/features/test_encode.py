"""Tests the encoder: columns as single events, in the joiner as in the server."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.features.encoder import Encoded, Encoder
from headrace.ingest.features.fields import FieldSet, parse_fields
from headrace.ingest.features.hashing import ABSENT, field_id, hash_text
from headrace.ingest.features.spec_text import SpecText
from tests.ingest.features.crosses import cross_ids

_SPEC = """
[fields.item]
number = 1
transform = "id"
[fields.pair]
number = 2
transform = "cross"
of = ["deep", "item"]
[fields.deep]
number = 9
transform = "cross"
of = ["slate", "hour"]
[fields.slate]
number = 4
transform = "log_bucket"
per_doubling = 4
[fields.hour]
number = 5
transform = "hour"
utc_offset_h = 5.5
[fields.tags]
number = 6
transform = "bag"
[fields.words]
number = 7
transform = "bag"
[fields.price]
number = 8
transform = "number"
[fields.log_price]
number = 10
transform = "number"
source = "price"
log1p = true
"""
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_VALUES = _SCALARS | st.lists(_SCALARS, max_size=4) | st.dictionaries(st.text(), _SCALARS)
_NAMES = ("item", "slate", "tags", "words", "price", "timestamp_ms")
_EVENTS = st.dictionaries(st.sampled_from(_NAMES), _VALUES)


def fields() -> FieldSet:
    where = SpecText("m", _SPEC)
    return parse_fields(where.tables(), where)


def encode(*events: dict[str, object]) -> Encoded:
    return Encoder(fields()).encode(events)


def rows(encoded: Encoded) -> list[tuple[object, ...]]:
    ends = encoded.bag_offsets
    bags = [encoded.bag_ids[begin:end].tolist() for begin, end in itertools.pairwise(ends)]
    return [
        (encoded.ids[i].tolist(), encoded.numbers[i].tolist(), bags[2 * i : 2 * i + 2])
        for i in range(len(encoded))
    ]


@given(st.lists(_EVENTS, max_size=8))
def test_a_batch_is_encoded_as_its_events_one_by_one(events: list[dict[str, object]]) -> None:
    together = encode(*events)
    assert together.ids.shape == (len(events), 5)
    assert together.numbers.shape == (len(events), 2)
    assert np.isfinite(together.numbers).all()
    assert rows(together) == [rows(encode(event))[0] for event in events]


@given(_EVENTS, st.lists(_EVENTS, max_size=5))
def test_candidates_are_encoded_as_events_that_have_the_context_too(
    context: dict[str, object], candidates: list[dict[str, object]]
) -> None:
    encoder = Encoder(fields())
    merged = encoder.encode([{**context, **each} for each in candidates])
    assert rows(encoder.encode_candidates(context, candidates)) == rows(merged)
    if candidates:
        few = encoder.encode_few([{**context, **each} for each in candidates])
        assert rows(few) == rows(merged)


def test_columns_of_ids_are_in_the_order_of_numbers() -> None:
    encoded = encode({"item": 3})
    assert (encoded.ids[0] & 1023).tolist() == [1, 2, 4, 5, 9]
    assert encoded.ids[0, 0] == field_id(hash_text("3"), 1)


def test_a_cross_of_a_cross_is_made_of_the_ids_of_its_parts_in_order() -> None:
    ids = encode({"item": "x", "slate": 7, "timestamp_ms": 0}).ids[0]
    item, pair, slate, hour, deep = (ids[i : i + 1] for i in range(5))
    assert deep.tolist() == cross_ids([slate, hour], 9).tolist()
    assert pair.tolist() == cross_ids([deep, item], 2).tolist()


@pytest.mark.parametrize(
    ("source", "place", "number", "values"),
    [
        ("item", 0, 1, [None, [1, 2], {"a": 1}]),
        ("slate", 2, 4, [None, "many", True, [3], math.nan, math.inf, "inf"]),
        ("timestamp_ms", 3, 5, [None, "noon", math.inf, math.nan]),
    ],
)
def test_a_value_that_a_transform_cannot_use_is_absent(
    source: str, place: int, number: int, values: list[object]
) -> None:
    for event in ({}, *({source: value} for value in values)):
        assert encode(event).ids[0, place] == field_id(ABSENT, number), event


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, 0), (1, 4), (2, 6), (3, 8), ("3", 8), (3.0, 8), (7, 12), (-3, -9), (1e300, 3986)],
)
def test_a_logarithmic_bucket_is_the_id_of_its_number(value: object, bucket: int) -> None:
    assert encode({"slate": value}).ids[0, 2] == field_id(hash_text(str(bucket)), 4)


def test_a_number_at_the_bound_of_a_bucket_encodes_alone_as_in_a_column() -> None:
    powers = np.exp2(np.arange(-60, 900, 7) / 4)
    near = np.concatenate([powers - 1, np.nextafter(powers - 1, 0), np.nextafter(powers, 0)])
    times = np.arange(-50, 50) * 1_800_000 + np.random.default_rng(5).integers(-1, 2, 100)
    events = [{"slate": value} for value in (*near.tolist(), *(-near).tolist())]
    events += [{"timestamp_ms": value, "slate": value / 3_600_000} for value in times.tolist()]
    together = encode(*events).ids
    for i, event in enumerate(events):
        assert encode(event).ids[0].tolist() == together[i].tolist(), event


@pytest.mark.parametrize(
    ("hours", "hour"), [(0, 5), (0.49, 5), (0.5, 6), (18.5, 0), (24 * 365 + 3, 8), (-6, 23)]
)
def test_the_hour_field_uses_local_time(hours: float, hour: int) -> None:
    made = encode({"timestamp_ms": int(hours * 3_600_000)}).ids[0, 3]
    assert made == field_id(hash_text(str(hour)), 5)


def test_plain_number_fields_are_zero_for_other_values() -> None:
    values = [2, "2.5", -3.0, None, "x", [1], True, 1e300, -1e300]
    numbers = encode(*({"price": value} for value in values)).numbers
    largest = float(np.finfo(np.float32).max)
    assert numbers[:, 0].tolist() == [2, 2.5, -3, 0, 0, 0, 0, largest, -largest]
    expected = [math.log1p(2), math.log1p(2.5), -math.log1p(3)]
    assert numbers[:3, 1].tolist() == pytest.approx(expected)


def test_bags_keep_their_items_in_order_with_what_is_no_array_as_a_bag_of_one() -> None:
    encoded = encode(
        {"tags": ["a", 2, None], "words": "w"}, {"words": []}, {"tags": [True, 2.0], "words": [1]}
    )
    tags = [field_id(hash_text(text), 6) for text in ("a", "2", None, "true", "2")]
    words = [field_id(hash_text(text), 7) for text in ("w", "1")]
    assert encoded.bag_ids.tolist() == [*tags[:3], words[0], *tags[3:], words[1]]
    assert encoded.bag_offsets.tolist() == [0, 3, 4, 4, 4, 6, 7]
