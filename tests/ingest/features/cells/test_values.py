"""All carriers of a value give it one text."""

import enum
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.ingest.features.cells.lists import split
from headrace.ingest.features.cells.values import (
    array_of,
    event_value,
    plain_event,
    texts_of,
    typed,
)

BIG = (1 << 53) + 1
UNSIGNED = (1 << 64) - 1
NAME = uuid.UUID(int=7)


class Colour(enum.Enum):
    RED = "red"


SEVENTEEN: list[Any] = [
    17,
    17.0,
    np.int64(17),
    np.uint8(17),
    np.float32(17),
    np.float64(17),
    Decimal(17),
    Decimal("17.00"),
    "17",
    np.str_("17"),
    b"17",
    np.bytes_(b"17"),
]


@pytest.mark.parametrize("value", SEVENTEEN, ids=repr)
def test_a_python_value_has_the_text_of_its_number(value: object) -> None:
    assert texts_of(array_of([event_value(value)])).to_pylist() == ["17"]


COLUMNS: list[tuple[pa.Array, list[str | None]]] = [
    (pa.array([17, None], pa.int8()), ["17", None]),
    (pa.array([17.0, float("nan")]), ["17", None]),
    (pa.array([17.0, float("inf")], pa.float16()), ["17", None]),
    (pa.array(["17", None], pa.large_string()), ["17", None]),
    (pa.array(["17", None], pa.string_view()), ["17", None]),
    (pa.array(["17", None]).dictionary_encode(), ["17", None]),
    (pa.array([17, 17]).dictionary_encode(), ["17", "17"]),
    (pa.array([BIG - 1, BIG], pa.uint64()), [str(BIG - 1), str(BIG)]),
    (pa.array([UNSIGNED], pa.uint64()), [str(UNSIGNED)]),
    (pa.array([Decimal(BIG - 1), Decimal(BIG)], pa.decimal128(20, 0)), [str(BIG - 1), str(BIG)]),
    (pa.array([Decimal(10**30)], pa.decimal128(38, 0)), [str(10**30)]),
    (pa.array([Decimal("17.00"), Decimal("17.50")], pa.decimal128(10, 2)), ["17", "17.5"]),
    (pa.array([b"caf\xc3\xa9", b"\x9a\x01"]), ["café", "9a01"]),
    (pa.array([b"ab", b"\x00\x01"], pa.binary(2)), ["ab", "0001"]),
    (pa.array([NAME.bytes], pa.uuid()), [str(NAME)]),
    (pa.array([True, False]), ["true", "false"]),
    (pa.array([date(9999, 12, 31)]), ["9999-12-31"]),
    (pa.array([datetime(2026, 3, 1, 8)], pa.timestamp("ns")), ["2026-03-01T08:00:00"]),
]


@pytest.mark.parametrize(("column", "wanted"), COLUMNS, ids=lambda each: str(each)[:40])
def test_a_column_has_the_texts_of_its_values(column: pa.Array, wanted: list[str | None]) -> None:
    assert texts_of(column).to_pylist() == wanted
    assert texts_of(column.slice(1)).to_pylist() == wanted[1:]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (NAME, str(NAME)),
        (Colour.RED, "red"),
        (date(2026, 1, 1), "2026-01-01"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (pd.Timestamp("2026-01-01 00:00:00.000000001"), "2026-01-01T00:00:00"),
        (np.datetime64("2026-01-01", "ns"), "2026-01-01T00:00:00"),
        (np.True_, True),
        (float("nan"), None),
        (np.float64("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.datetime64("NaT"), None),
        (("a", np.int64(1)), ["a", 1]),
        (np.array([1, 2]), [1, 2]),
        (Decimal(BIG), BIG),
        (Decimal("0.1"), 0.1),
        (b"\x9a\x01", "9a01"),
        (None, None),
    ],
    ids=repr,
)
def test_a_python_value_has_one_form_in_json(value: object, wanted: object) -> None:
    assert event_value(value) == wanted


def test_a_value_without_a_form_in_json_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match=r"expected a text, a number.* got <class 'complex'>"):
        plain_event({"a": 1j})


def test_data_frames_of_pandas_and_polars_have_the_values_of_their_cells() -> None:
    words = ["red", "blue", "red"]
    for frame in (
        pd.DataFrame({"word": pd.Categorical(words), "number": pd.array([1, None, 3], "Int64")}),
        *(
            pl.DataFrame({"word": pl.Series(words, dtype=kind), "number": [1, None, 3]})
            for kind in (pl.Enum(["blue", "red"]), pl.Categorical)
        ),
    ):
        table = pa.table(frame).combine_chunks()
        assert texts_of(table["word"].chunk(0)).to_pylist() == words
        assert texts_of(table["number"].chunk(0)).to_pylist() == ["1", None, "3"]


def test_values_of_several_types_in_one_column_become_canonical_texts() -> None:
    assert array_of(["a", 2.0, True, None]).to_pylist() == ["a", "2", "true", None]
    assert array_of([1, 2.5]).to_pylist() == [1.0, 2.5]
    assert array_of([BIG, 2.5]).to_pylist() == [str(BIG), "2.5"]
    assert array_of([["a"], "b", None]).to_pylist() == [["a"], ["b"], None]


def test_texts_of_numbers_and_flags_become_such() -> None:
    assert typed(pa.array(["17.0", "3", None])).to_pylist() == [17, 3, None]
    assert typed(pa.array(["True", "FALSE", None])).to_pylist() == [True, False, None]
    assert typed(pa.array(["2.50", "x", str(BIG)])).to_pylist() == ["2.5", "x", str(BIG)]
    assert typed(pa.array(["nan", "1e400", "007"])).to_pylist() == ["nan", "1e400", "7"]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("Drama, Action", ["Drama", "Action"]),
        ("[8, 9]", ["8", "9"]),
        ("[8 9]", ["8", "9"]),
        ('["a,b", "c"]', ["a,b", "c"]),
        ("['a', 'b']", ["a", "b"]),
        ("['a' 'b']", ["a", "b"]),
        ("['a b' \"it's\"\n 'c']", ["a b", "it's", "c"]),
        ("[b'a' b'b']", ["a", "b"]),
        ("[' ', ' ']", [" ", " "]),
        ("[1 2\n 3]", ["1", "2", "3"]),
        ('["a",\n "b"]', ["a", "b"]),
        ("[]", []),
        ("a,,b", ["a", "b"]),
        ("[1, null]", ["1"]),
        (None, None),
    ],
)
def test_a_list_in_a_cell_has_its_items(text: str | None, items: list[str] | None) -> None:
    for others in ([], ["x,y"], ["[x]"]):
        assert split(pa.array([text, *others], pa.string()), ",").to_pylist()[0] == items
