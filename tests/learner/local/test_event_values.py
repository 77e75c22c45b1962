"""The labels and times of events mean the same with each type of Python that carries them."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from headrace.learner.local.local_model import LocalModel
from headrace.learner.spec.model_spec import parse_spec

SPEC = parse_spec('[model]\nname = "i"\n[fields]\nitem = { number = 1, transform = "id" }\n', "i")
T0_MS = 1_760_000_000_000


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


def test_the_values_of_a_context_are_those_of_a_candidate() -> None:
    model = LocalModel(SPEC)
    rows = [{"timestamp_ms": T0_MS + 1000 * i, "item": i % 2, "clicked": i % 2} for i in range(200)]
    model.learn(rows, label="clicked")
    model.flush()
    [one, other] = model.predict([{"item": 1}, {"item": 0}], at_ms=T0_MS)
    assert model.predict([{}], {"item": Decimal(1)}, at_ms=T0_MS)[0] == one > other
