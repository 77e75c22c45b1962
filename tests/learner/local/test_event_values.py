"""A value of an event means the same in `learn` and in `predict`, with each type of Python."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.learner.local.local_model import LocalModel
from headrace.learner.spec.model_spec import parse_spec

SPEC = parse_spec('[model]\nname = "i"\n[fields]\nitem = { number = 1, transform = "id" }\n', "i")
BAGS = parse_spec('[model]\nname = "i"\n[fields]\nitem = { number = 1, transform = "bag" }\n', "i")
T0_MS = 1_760_000_000_000


def taught(clicked: object, other: object, spec: Any = SPEC) -> LocalModel:
    """Return a model that learned clicks of one value, and none of another."""
    model = LocalModel(spec)
    rows = [
        {"timestamp_ms": T0_MS + 1000 * i, "item": (other, clicked)[i % 2], "clicked": i % 2}
        for i in range(200)
    ]
    model.learn(rows, label="clicked")
    model.flush()
    return model


SAME: list[tuple[Any, Any, Any]] = [
    (np.int64(1), 1, 2),
    (np.float64(1), 1, 2),
    (Decimal(1), 1, 2),
    (np.str_("u1"), "u1", "u2"),
    (b"u1", "u1", "u2"),
    (UUID(int=1), str(UUID(int=1)), str(UUID(int=2))),
    (date(2026, 1, 1), "2026-01-01", "2026-01-02"),
    (np.True_, True, False),
    (Decimal((1 << 53) + 1), (1 << 53) + 1, 1 << 53),
    (float("nan"), None, "a"),
    (pd.NA, None, "a"),
]


@pytest.mark.parametrize(("carried", "plain", "other"), SAME, ids=lambda each: repr(each)[:24])
def test_a_value_is_learned_and_predicted_alike_with_each_type_that_carries_it(
    carried: object, plain: object, other: object
) -> None:
    of_plain, of_carried = taught(plain, other), taught(carried, other)
    rows = [{"item": plain}, {"item": carried}, {"item": other}]
    found = of_plain.predict(rows, at_ms=T0_MS)
    np.testing.assert_array_equal(of_carried.predict(rows, at_ms=T0_MS), found)
    assert found[0] == found[1] > found[2]
    shared = [of_plain.predict([{}], each, at_ms=T0_MS)[0] for each in rows]
    np.testing.assert_array_equal(shared, found)


def test_a_bag_is_a_bag_in_each_type_of_sequence() -> None:
    model = taught(["a", "b"], ["c"], BAGS)
    rows = [{"item": each} for each in (["a", "b"], ("a", "b"), np.array(["a", "b"]), "c")]
    found = model.predict(rows, at_ms=T0_MS)
    assert found[0] == found[1] == found[2] > found[3]


LABELS: list[tuple[Any, Any]] = [
    ("0", "1"),
    (-1, 1),
    (float("nan"), 1.0),
    (None, 1),
    ("no", "yes"),
    ("False", "True"),
    (np.False_, np.True_),
    (np.int64(0), np.int64(3)),
    (Decimal(0), Decimal(1)),
    ("", "2026-03-01 08:00:00"),
    (datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)),
]


@pytest.mark.parametrize(("no", "yes"), LABELS, ids=repr)
@pytest.mark.parametrize("carrier", [list, pd.DataFrame, pl.DataFrame])
def test_a_label_is_a_click_by_its_meaning(no: object, yes: object, carrier: Any) -> None:
    if carrier is pl.DataFrame and isinstance(no, np.generic):
        no, yes = no.item(), yes.item()  # type: ignore[attr-defined]
    rows = [
        {"timestamp_ms": T0_MS + 1000 * i, "item": "ab"[i % 2], "clicked": (no, yes)[i % 2]}
        for i in range(200)
    ]
    model = LocalModel(SPEC)
    assert not model.learn(carrier(rows), label="clicked").refused
    model.flush()
    assert sum(model.outcomes().labels) == 100
    assert np.subtract(*model.predict([{"item": "a"}, {"item": "b"}], at_ms=T0_MS)) < 0


def test_a_word_that_is_neither_a_click_nor_none_is_refused_with_its_row() -> None:
    rows = [{"timestamp_ms": T0_MS, "item": "a", "clicked": each} for each in ("1", "view")]
    with pytest.raises(ValueError, match=r"got 'view' in the column 'clicked' of row 1"):
        LocalModel(SPEC).learn(rows, label="clicked")


@pytest.mark.parametrize("policy", ["window", "immediate"])
@pytest.mark.parametrize(
    "kind", [int, float, np.int64, np.float64, lambda t: np.datetime64(t, "ms"), pd.Timestamp]
)
def test_a_time_orders_events_with_each_type_that_carries_it(policy: str, kind: Any) -> None:
    model = LocalModel(parse_spec(f'{SPEC.text}[label]\npolicy = "{policy}"', "i"))
    order = np.random.default_rng(7).permutation(500)
    unit = {"unit": "ms"} if kind is pd.Timestamp else {}
    rows = [
        {"impression_id": f"i{i}", "timestamp_ms": kind(T0_MS + 1000 * int(i), **unit), "item": "a"}
        for i in order
    ]
    learned = [model.learn(rows), model.flush()]
    assert sum(each.examples for each in learned) == 500
    assert not any(each.refused for each in learned)


def test_the_cells_of_a_data_frame_are_the_values_of_its_rows() -> None:
    big = 1 << 53
    items = [Decimal(big), Decimal(big + 1)] * 100
    table = pa.table(
        {
            "timestamp_ms": [T0_MS + 1000 * i for i in range(200)],
            "item": pa.array(items, pa.decimal128(20, 0)),
            "clicked": [i % 2 for i in range(200)],
        }
    )
    model = LocalModel(SPEC)
    model.learn(table, label="clicked")
    model.flush()
    found = model.predict([{"item": big}, {"item": big + 1}, {"item": str(big + 1)}], at_ms=T0_MS)
    assert found[0] < found[1] == found[2]
    np.testing.assert_array_equal(model.predict(table.slice(0, 2), at_ms=T0_MS)[1], found[1])
