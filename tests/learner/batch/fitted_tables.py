"""Tables to fit, and fits of them."""

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.ingest.logs.layout import LogLayout, parse_layout
from headrace.learner.batch.fit_folder import FitFolder
from headrace.learner.batch.table_source import TableSource
from headrace.learner.batch.trainer import BatchTrainer, FitSettings, FitSummary
from tests.learner.shop import shop_rows, shop_spec

Done = TypeVar("Done")
Tell = Callable[[object], object]

LAYOUT = """
[file]
numbers = ["price"]
[event]
timestamp = "time"
[click]
column = "clicked"
[fields]
user = "user"
item = "item"
price = "price"
tags = { column = "tags", separator = "|" }
"""
ROWS = 50_000
NAMES = ["user", "item", "price", "tags", "time", "clicked"]


def rows_of_files() -> pa.Table:
    """Rows a second apart, as files have them."""
    rows = shop_rows(ROWS).rename_columns(NAMES)
    return rows.set_column(3, "tags", pa.compute.binary_join(rows["tags"], "|"))


def layout() -> LogLayout:
    return parse_layout(LAYOUT, "layout.toml")


def write(rows: pa.Table, folder: Path, kind: str) -> str:
    """Write two files of one kind; return their pattern."""
    for place, name in enumerate("ab"):
        part = rows.slice(place * ROWS // 2, ROWS // 2)
        path = folder / f"{name}.{kind}"
        if kind == "csv":
            pyarrow.csv.write_csv(part, path)
        elif kind == "parquet":
            pyarrow.parquet.write_table(part, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in part.to_pylist()))
    return str(folder / f"*.{kind}")


def fit(
    url: str,
    to: Path,
    settings: FitSettings,
    stop: threading.Event | None = None,
    tell: Tell = lambda _: None,
) -> FitSummary | None:
    spec = shop_spec()
    source = TableSource([url], layout(), spec)
    trainer = BatchTrainer(spec, source, FitFolder(str(to), spec.name), settings)
    return trainer.run(stop or threading.Event(), tell)


def stopped(run: Callable[[threading.Event, Tell], Done | None], after: Iterable[int]) -> Done:
    """Run a fit to its end, stopped and started again after each of these numbers of reports."""
    for reports in after:
        stop, left = threading.Event(), reports

        def tell(_: object, stop: threading.Event = stop) -> None:
            nonlocal left
            left -= 1
            if not left:
                stop.set()

        done = run(stop, tell)
        if done is not None:
            return done
    raise AssertionError("the fit did not end")
