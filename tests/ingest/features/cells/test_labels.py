"""A cell of a label is a click, no click, or refused: never the truth of a text."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.ingest.features.cells.labels import UnknownWord, clicked_in

NO: list[Any] = [
    *("0", "0.0", "0.00", "-1", "-2", "", " ", "NA", "N/A", "NaN", "null", "\\N", "-"),
    *(
        "false",
        "False",
        "no",
        "nein",
        "nei",
        "nie",
        "1970-01-01 00:00:00",
        "1970-01-01",
        "9999-12-31",
        "-0",
    ),
]
YES: list[Any] = [
    "1",
    "1.0",
    "2",
    " 1",
    "true",
    "True",
    "YES",
    "ja",
    "tak",
    "2026-03-01 08:00:00",
    "1e3",
]


@pytest.mark.parametrize(("texts", "clicked"), [(NO, False), (YES, True)])
def test_texts_say_by_their_value_whether_there_was_a_click(
    texts: list[str], clicked: bool
) -> None:
    found = zip(texts, clicked_in(pa.array(texts)).tolist(), strict=True)
    assert dict(found) == dict.fromkeys(texts, clicked)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 1, None, -1]),
        pa.array([0.0, 2.0, float("nan"), -2.0]),
        pa.array([False, True, None, False]),
        pa.array([Decimal(0), Decimal(1), None, Decimal(-1)], pa.decimal128(3, 0)),
        pa.array(["0", "1", None, "-1"]).dictionary_encode(),
        pa.array(
            [datetime(1970, 1, 1), datetime(2026, 1, 1), None, datetime(9999, 12, 31)],
            pa.timestamp("us"),
        ),
        pa.array([date(1970, 1, 1), date(2026, 1, 1), None, date(9999, 12, 31)]),
    ],
    ids=lambda column: str(column.type),
)
def test_typed_cells_say_whether_there_was_a_click(column: pa.Array) -> None:
    assert clicked_in(column).tolist() == [False, True, False, False]


def test_a_word_that_means_neither_is_refused_with_its_row() -> None:
    with pytest.raises(UnknownWord, match=r"got 'view'") as refused:
        clicked_in(pa.array(["1", None, "view"]))
    assert refused.value.row == 2


def test_named_values_alone_mean_a_click() -> None:
    words = pa.array(["View", " CLICK", None])
    assert clicked_in(words, ["click"]).tolist() == [False, True, False]
    assert clicked_in(pa.array([1, 2, 3]), [2, "3"]).tolist() == [False, True, True]
    assert clicked_in(pa.array(["1.00", "2"]), [1]).tolist() == [True, False]
    assert clicked_in(pa.array(["gclid-7", "", "0", None]), ["*"]).tolist() == [
        *(True, False, False, False)
    ]
