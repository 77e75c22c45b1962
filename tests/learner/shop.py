"""A shop's model and its log, for tests that learn tables."""

import numpy as np
import pyarrow as pa

import headrace
from headrace.ingest.examples.batch import Examples
from headrace.learner.local.table_examples import TableEncoder, times_of

BEGIN_MS = 1_700_000_000_000
_SPEC = """
[model]
name = "shop"

[label]
policy = "{policy}"
window_s = 60

[fields.user]
number = 1
transform = "id"

[fields.item]
number = 2
transform = "id"

[fields.price]
number = 3
transform = "number"

[fields.tags]
number = 4
transform = "bag"

[fields.hour]
number = 5
transform = "hour"
"""
CROSS = """
[fields.user_item]
number = 6
transform = "cross"
of = ["user", "item"]
"""


def shop_spec(more: str = "", policy: str = "window") -> headrace.ModelSpec:
    """Return the model of user, item, price, tags and hour, and of the sections in `more`."""
    return headrace.parse_spec(_SPEC.format(policy=policy) + more, "shop.toml")


def shop_rows(count: int, seed: int = 1) -> pa.Table:
    """Return rows a second apart, clicked more often where a user likes an item."""
    dice = np.random.default_rng(seed)
    user, item = dice.integers(0, 20, count), dice.integers(0, 10, count)
    clicked = dice.random(count) < np.where(user % 10 == item, 0.8, 0.1)
    return pa.table(
        {
            "user": pa.array([f"u{number}" for number in user]),
            "item": pa.array(item),
            "price": pa.array(np.round(dice.random(count), 2)),
            "tags": pa.array([[f"t{a}", f"t{b}"] for a, b in dice.integers(0, 9, (count, 2))]),
            "timestamp_ms": pa.array(BEGIN_MS + 1000 * np.arange(count)),
            "clicked": pa.array(clicked.astype(np.int64)),
        }
    )


def shop_examples(rows: pa.Table, spec: headrace.ModelSpec) -> Examples:
    """Return rows as examples with the labels in `clicked`."""
    columns = {name: rows[name].combine_chunks() for name in rows.column_names}
    labels = columns.pop("clicked").to_numpy().astype(np.uint8)
    times = times_of(columns, rows.num_rows, 0)
    return TableEncoder(spec.fields).examples(columns, times, labels)
