"""One table makes the same examples and predictions, with each carrier and each reader.

Files are read by a fit and by a replay, data frames by LocalModel, the estimator and the tasks of
Spark, single rows by LocalModel and by a server.
"""

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

from headrace.ingest.examples.batch import concatenate, unpack
from headrace.ingest.features.encoder import Encoder
from headrace.ingest.features.fields import parse_fields
from headrace.ingest.features.spec_text import SpecText
from headrace.ingest.logs.layout import parse_layout
from headrace.ingest.logs.table_log import TableLog
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.store_fit.partition_tasks import RunSpec, StageTask
from headrace.learner.batch.table_source import TableSource
from headrace.learner.local.classifier import HeadraceClassifier
from headrace.learner.local.event_input import rows_of
from headrace.learner.local.local_model import LocalModel
from headrace.learner.spec.model_spec import parse_spec
from headrace.serving.requests.limits import RequestLimits
from headrace.serving.requests.request_decoder import RequestDecoder

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
DECODER = RequestDecoder(parse_fields(WHERE.tables(), WHERE), RequestLimits())
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


def frames_of(table: pa.Table) -> dict[str, Any]:
    return {
        "Arrow": table,
        "Arrow in two chunks": pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        "pandas": table.to_pandas(),
        "pandas of Arrow": table.to_pandas(types_mapper=pd.ArrowDtype),
        "categories": table.to_pandas().astype({"user": "category"}),
        "polars": pl.from_arrow(table),
    }


def scalars_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "item": np.uint64(row["item"]),
            "user": np.str_(row["user"]),
            "flag": np.bool_(row["flag"]),
            "price": np.float64(row["price"]),
            "tags": np.array(row["tags"]),
        }
        for row in rows
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TABLES)
def test_rows_of_frames_of_spark_and_of_requests_are_the_values_of_a_table(
    rows: list[dict[str, Any]],
) -> None:
    wanted, table = ENCODER.encode(rows), arrow_of(rows)
    for name, carrier in {**frames_of(table), "numpy": scalars_of(rows), "rows": rows}.items():
        assert_same(ENCODER.encode(list(rows_of(carrier))), wanted, name)
    task = StageTask(RunSpec(SPEC.text, "one"), "clicked")
    [staged] = task(iter(table.to_batches()))
    parts = [unpack(each, SPEC.fields) for each in staged["examples"].to_pylist()]
    examples = concatenate(parts)
    assert_same(examples.features, wanted, "Spark")
    assert examples.labels.tolist() == [row["clicked"] for row in rows]
    fields = [{name: row[name] for name in row if name != "clicked"} for row in rows]
    asked = DECODER.decode(orjson.dumps({"candidates": fields}))
    assert_same(asked.candidates.encode(ENCODER, T0_MS), wanted, "request")


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(ROWS, min_size=4, max_size=12))
def test_models_learn_and_predict_the_same_from_each_carrier(rows: list[dict[str, Any]]) -> None:
    rows = [{**row, "timestamp_ms": T0_MS + 1000 * i} for i, row in enumerate(rows)]
    table = arrow_of(rows).drop_columns(["time", "clicked"])
    table = table.append_column("timestamp_ms", pa.array([row["timestamp_ms"] for row in rows]))
    labels = [i % 2 for i in range(len(rows))]
    numbered = [{**row, "clicked": label} for row, label in zip(rows, labels, strict=True)]
    scalars = [
        {**scalar, "timestamp_ms": np.int64(row["timestamp_ms"]), "clicked": row["clicked"]}
        for scalar, row in zip(scalars_of(rows), numbered, strict=True)
    ]
    labelled = table.append_column("clicked", pa.array(labels))
    local = {"rows": numbered, "numpy": scalars, **frames_of(labelled)}
    found = {}
    for name, carrier in local.items():
        model = LocalModel(SPEC)
        assert not model.learn(carrier, label="clicked").refused
        model.flush()
        found[name] = [model.predict(each, at_ms=T0_MS).tolist() for each in local.values()]
    assert all(each == found["rows"] for each in found.values())
    assert all(each == found["rows"][0] for each in found["rows"])
    frames = frames_of(table)
    asked = {
        (one, other): HeadraceClassifier(SPEC).fit(taught, labels).predict_proba(frame).tolist()
        for one, taught in frames.items()
        for other, frame in frames.items()
        if "Arrow" in (one, other)
    }
    assert all(each == asked["Arrow", "Arrow"] for each in asked.values())
