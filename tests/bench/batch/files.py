"""Measures the rows a second of `check`, `suggest` and a fit, on CSV and Parquet.

    python -m tests.bench.files [--quick] [--json]

One table of eight columns: a time, a click time, three ids, a number, a bag in a text and a text.
Rows are divided by processor time of all threads, so other processes on the machine hardly
matter. `arrow`, `polars` and, where it is installed, `duckdb` only read the same file, all columns
of a CSV as texts.
"""

import csv
import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from headrace.ingest.logs.layout_guess import guess_layout
from headrace.ingest.survey.log_survey import survey_log
from headrace.learner.batch.sources import FilePosition
from headrace.learner.batch.table_source import TableSource
from headrace.learner.spec.model_spec import parse_spec
from headrace.learner.suggestion.spec_suggestion import suggest_spec
from tests.bench.bench_options import bench_parser, print_figures

SPEC = parse_spec(
    """
[model]
name = "files"
[fields]
user = { number = 1, transform = "id" }
item = { number = 2, transform = "id" }
site = { number = 3, transform = "id" }
price = { number = 4, transform = "log_bucket" }
tags = { number = 5, transform = "bag" }
""",
    "files.toml",
)
SEED = 7
SAMPLED = 300_000
"""Rows that `suggest` reads at most."""


def written(folder: Path, rows: int) -> dict[str, Path]:
    """Write the table in each format; return the files."""
    dice = np.random.default_rng(SEED)
    at = np.datetime64("2026-03-01T08:00:00", "ms") + 100 * np.arange(rows)
    clicked = np.where(dice.random(rows) < 0.1, at + 5_000, np.datetime64("NaT"))
    words = np.array(["news", "sport", "music", "arts"])
    tags = np.array([f"{one}|{other}" for one in words for other in words])
    table = pa.table(
        {
            "time": at,
            "clicked_at": clicked,
            "user": dice.integers(0, 100_000, rows),
            "item": dice.integers(0, 5_000, rows),
            "site": words[dice.integers(0, 4, rows)],
            "price": dice.random(rows).round(4),
            "tags": tags[dice.integers(0, tags.size, rows)],
            "note": np.array(["a text", "another text, longer"])[dice.integers(0, 2, rows)],
        }
    )
    paths = {kind: folder / f"log.{kind}" for kind in ("csv", "parquet")}
    pyarrow.parquet.write_table(table, paths["parquet"])
    pyarrow.csv.write_csv(table, paths["csv"])
    return paths


def works(path: Path) -> dict[str, Callable[[], object]]:
    """Return what is measured on a file, by name."""
    layout = guess_layout(path).layout

    def fit() -> int:
        source = TableSource([str(path)], layout, SPEC, threads=1)
        return sum(len(block.examples) for block in source.blocks(FilePosition()))

    def by_arrow() -> int:
        if path.suffix == ".parquet":
            return int(pyarrow.parquet.read_table(path, use_threads=False).num_rows)
        with path.open(encoding="utf-8") as file:
            names = next(csv.reader(file))
        texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        once = pyarrow.csv.ReadOptions(use_threads=False)
        return int(pyarrow.csv.read_csv(path, once, convert_options=texts).num_rows)

    def by_polars() -> int:
        parquet = path.suffix == ".parquet"
        read = pl.read_parquet(path) if parquet else pl.read_csv(path, infer_schema=False)
        return read.height

    def by_duckdb() -> int:
        duckdb = importlib.import_module("duckdb")
        read = f"read_csv('{path}', all_varchar=true)" if path.suffix == ".csv" else f"'{path}'"
        batches = duckdb.sql(f"SELECT * FROM {read}").to_arrow_reader(16_384)
        return sum(batch.num_rows for batch in batches)

    rivals = {"duckdb": by_duckdb} if importlib.util.find_spec("duckdb") else {}
    return {
        "check": lambda: survey_log(path, SPEC.fields, layout),
        "suggest": lambda: suggest_spec(path, layout),
        "fit_input": fit,
        "arrow": by_arrow,
        "polars": by_polars,
        **rivals,
    }


def measure(rows: int) -> dict[str, float]:
    """Return the rows for each second of processor time, by format and work."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in written(Path(folder), rows).items():
            for name, work in works(path).items():
                work()  # compiles kernels and fills the cache of pages
                began_s = time.process_time()
                work()
                counted = min(rows, SAMPLED) if name == "suggest" else rows
                found[f"{kind}_{name}"] = counted / (time.process_time() - began_s)
    return found


def main() -> None:
    """Measure and print."""
    arguments = bench_parser("files", __doc__, quick="A fifth of the rows.").parse_args()
    rows = 200_000 if arguments.quick else 1_000_000
    if not importlib.util.find_spec("duckdb"):
        print("duckdb is not installed: measured without it", file=sys.stderr)
    found = {name: round(each) for name, each in measure(rows).items()}
    print_figures({"rows": rows, "rows_per_cpu_second": found}, as_json=arguments.json)


if __name__ == "__main__":
    main()
