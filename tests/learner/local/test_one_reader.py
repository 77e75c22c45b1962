"""One table makes the same examples, in each format of file and of data frame."""

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.logs.layout import parse_layout
from headrace.ingest.logs.table_log import TableLog
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.table_source import TableSource
from headrace.learner.local.event_input import rows_of
from headrace.learner.spec.model_spec import parse_spec

FIELDS = """
[fields]
item = { number = 1, transform = "id" }
user = { number = 2, transform = "id" }
flag = { number = 3, transform = "id" }
price = { number = 4, transform = "log_bucket" }
cents = { number = 5, transform = "number", source = "price" }
of_price = { number = 6, transform = "id", source = "price" }
tags = { number = 7, transform = "bag" }
"""
WHERE = SpecText("one.toml", FIELDS)
ENCODER = Encoder(parse_fields(WHERE.tables(), WHERE))
SPEC = parse_spec(f'[model]\nname = "one"\n{FIELDS}', "one.toml")
T0_MS = 1_760_000_000_000
LAYOUT = '[event]\ntimestamp = "time"\n[click]\ncolumn = "clicked"\n'
OF_CSV = f"""[file]
numbers = ["flag", "price"]
{LAYOUT}[fields]
item = "item"
user = "user"
flag = "flag"
price = "price"
tags = {{ column = "tags", separator = "|" }}
"""

WORDS = st.text(st.sampled_from("abcäö-_:"), min_size=1, max_size=6)
ROWS = st.fixed_dictionaries(
    {
        "item": st.integers(0, 2**64 - 1),
        "user": WORDS,
        "flag": st.booleans(),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(WORDS, min_size=1, max_size=3),
        "clicked": st.booleans(),
    }
)
TABLES = st.lists(ROWS, min_size=1, max_size=12)
KINDS = {
    "item": pa.uint64(),
    "user": pa.string(),
    "flag": pa.bool_(),
    "price": pa.float64(),
    "tags": pa.list_(pa.string()),
    "clicked": pa.bool_(),
}


def arrow_of(rows: list[dict[str, Any]]) -> pa.Table:
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in KINDS.items()}
    return pa.table({"time": [T0_MS + 1000 * i for i in range(len(rows))], **columns})


def files_of(rows: list[dict[str, Any]], folder: Path) -> dict[Path, str]:
    """Write the rows in each format; return the layout of each file."""
    paths = {name: folder / f"log.{name}" for name in ("parquet", "ndjson", "csv")}
    timed = [{"time": T0_MS + 1000 * i, **row} for i, row in enumerate(rows)]
    pyarrow.parquet.write_table(arrow_of(rows), paths["parquet"])
    paths["ndjson"].write_text("\n".join(map(json.dumps, timed)))
    with paths["csv"].open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(timed[0])
        for row in timed:
            cells = row | {"tags": "|".join(row["tags"])}
            writer.writerow([cells[name] for name in timed[0]])
    return {paths["parquet"]: LAYOUT, paths["ndjson"]: LAYOUT, paths["csv"]: OF_CSV}


def assert_same(found: Any, wanted: Any, name: object) -> None:
    for part in ("ids", "bag_ids", "bag_offsets", "numbers"):
        np.testing.assert_array_equal(
            getattr(found, part), getattr(wanted, part), f"{name}: {part}"
        )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TABLES)
def test_files_make_the_examples_of_their_rows(rows: list[dict[str, Any]]) -> None:
    wanted, labels = ENCODER.encode(rows), [row["clicked"] for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files_of(rows, Path(folder)).items():
            layout = parse_layout(text, "layout.toml")
            [block] = TableSource([str(path)], layout, SPEC).blocks(FilePosition())
            assert_same(block.examples.features, wanted, f"fit of {path.suffix}")
            assert block.examples.labels.tolist() == labels
            lines = list(TableLog(path, layout).lines())
            events = [orjson.loads(line.value) for line in lines if not line.is_click]
            assert_same(ENCODER.encode(events), wanted, f"events of {path.suffix}")
            clicked = {orjson.loads(each.value)["impression_id"] for each in lines if each.is_click}
            assert [event["impression_id"] in clicked for event in events] == labels


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TABLES)
def test_data_frames_and_scalars_are_the_values_of_their_rows(rows: list[dict[str, Any]]) -> None:
    wanted, table = ENCODER.encode(rows), arrow_of(rows)
    scalars = [
        {
            "item": np.uint64(row["item"]),
            "user": np.str_(row["user"]),
            "flag": np.bool_(row["flag"]),
            "price": np.float64(row["price"]),
            "tags": np.array(row["tags"]),
        }
        for row in rows
    ]
    carriers = {
        "Arrow": table,
        "pandas": table.to_pandas(),
        "pandas of Arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
        "categories": table.to_pandas().astype({"user": "category"}),
        "polars": pl.from_arrow(table),
        "numpy": scalars,
        "JSON": [orjson.loads(orjson.dumps(row)) for row in rows],
    }
    for name, carrier in carriers.items():
        assert_same(ENCODER.encode(list(rows_of(carrier))), wanted, name)
