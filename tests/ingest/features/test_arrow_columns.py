"""Columns of a table are encoded as events with the same values are."""

import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ingest.features.arrow_columns import ArrowColumns
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText

FIELDS = """
[fields.id]
number = 1
transform = "id"
source = "value"
[fields.bucket]
number = 2
transform = "log_bucket"
source = "value"
per_doubling = 3
[fields.number]
number = 3
transform = "number"
source = "value"
[fields.bag]
number = 4
transform = "bag"
source = "value"
[fields.missing]
number = 5
transform = "id"
[fields.both]
number = 6
transform = "cross"
of = ["id", "bucket"]
"""

_WHERE = SpecText("columns.toml", FIELDS)
ENCODER_FIELDS = parse_fields(_WHERE.tables(), _WHERE)
SCALARS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=80)),
    "digits": (pa.string(), st.from_regex(r"-?[0-9]{1,4}(\.[0-9])?", fullmatch=True)),
    "integer": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "unsigned": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats()),
    "single": (pa.float32(), st.floats(width=32)),
    "flag": (pa.bool_(), st.booleans()),
    "time": (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    ),
    "nothing": (pa.null(), st.none()),
}


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """A column of one type, with nulls; scalars, or lists of them."""
    kind, values = SCALARS[draw(st.sampled_from(sorted(SCALARS)))]
    if draw(st.booleans()):
        kind, values = pa.list_(kind), st.lists(values | st.none(), max_size=4)
    column = pa.array(draw(st.lists(values | st.none(), max_size=40)), kind)
    if draw(st.booleans()) and len(column):
        column = column.slice(draw(st.integers(0, len(column) - 1)))
    if draw(st.booleans()) and pa.types.is_string(column.type):
        column = column.dictionary_encode()
    return column


def as_json(value: object) -> object:
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


@given(columns())
def test_a_column_is_encoded_as_events_with_its_values_are(column: pa.Array) -> None:
    encoder = Encoder(ENCODER_FIELDS)
    events = [{} if v is None else {"value": as_json(v)} for v in column.to_pylist()]
    wanted = encoder.encode(events)
    found = encoder.encode_columns(len(column), ArrowColumns(len(column), {"value": column}))
    for name in ("ids", "bag_ids", "bag_offsets", "numbers"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)


def test_a_missing_column_is_absent_in_every_row() -> None:
    encoder = Encoder(ENCODER_FIELDS)
    found = encoder.encode_columns(3, ArrowColumns(3, {}))
    wanted = encoder.encode([{}, {}, {}])
    np.testing.assert_array_equal(found.ids, wanted.ids)
    assert not np.isnan(found.numbers).any()


def test_a_column_that_no_event_can_have_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"column 'value': expected texts, numbers.* got struct"):
        ArrowColumns(1, {"value": pa.array([{"x": 1}])})


def test_numbers_that_json_lacks_are_absent() -> None:
    column = pa.array([math.nan, math.inf, None])
    encoder = Encoder(ENCODER_FIELDS)
    found = encoder.encode_columns(3, ArrowColumns(3, {"value": column}))
    np.testing.assert_array_equal(found.ids, encoder.encode([{}] * 3).ids)
