"""Compares `headrace.spark` with the logistic regression of Spark ML.

    python -m tests.bench.spark [--quick] [--rounds N] [--json]

It needs an environment with `headrace[spark]`: run it with the Python of that environment, or set
HEADRACE_SPARK_PYTHON to it.

Both contenders learn the same Parquet file on one session of Spark, in turns, `rounds` times: the
stream of `tests.bench.learner`, 26 ids and 13 numbers per row. A fit begins with the DataFrame
of the file and ends with the model in the driver. For headrace this includes staging, learning into
a Valkey of its own, and reading the rows. A transform scores the file and drops the result. Figures
are medians in rows/s. A first run of each contender on a small file does not count, since it loads
code and starts workers. `auc` is that of a further file that no contender has learned.

headrace makes one pass over the rows. Spark's logistic regression hashes all columns into 2^20
features (`FeatureHasher`) and makes ten steps of L-BFGS, at least a pass each. Its penalty is the
best of five settings on this stream. `load` is the load of the machine at the begin and the end,
`seconds` the time of the run.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from tests.bench.batch.stream_table import write_table
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.learner.stream import IDS, LR, NUMBERS, make_stream, stream_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PYTHON = "HEADRACE_SPARK_PYTHON"
SKIPPED = 77
"""Exit status without PySpark, on which `make bench` goes on."""
LABEL = "clicked"
GROUP = 8192
"""Rows of a group in the files: Spark gives groups of one file to several tasks."""
WARM_UP = 2_000
"""Rows of the first run of each contender, which does not count."""


class Size(NamedTuple):
    """Rows learned, rows held out, and rounds that count."""

    rows: int
    held_out: int
    rounds: int


QUICK, FULL = Size(20_000, 10_000, 1), Size(1_000_000, 100_000, 3)


class Contender(NamedTuple):
    """An estimator, and the names of its columns."""

    name: str
    estimator: Any
    score: str
    """Column by which an evaluator ranks the rows."""


def need_pyspark() -> None:
    """Continue with the Python of HEADRACE_SPARK_PYTHON if this one has no PySpark, or exit."""
    if importlib.util.find_spec("pyspark") is not None:
        return
    named = os.environ.get(PYTHON)
    if not named:
        print(
            "tests.bench.spark: skipped: expected PySpark 4.2.0 in this environment, got none. "
            "Spark needs an environment of its own: install headrace[spark] there, and run this "
            f"command with its Python or with {PYTHON}=PATH_OF_ITS_PYTHON",
            file=sys.stderr,
        )
        sys.exit(SKIPPED)
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment.pop(PYTHON)  # if that one has no PySpark either, it ends
    arguments = [named, "-m", "tests.bench.spark", *sys.argv[1:]]
    os.execve(named, arguments, environment)


def spark_session() -> SparkSession:
    """Start Spark in this process, with a worker per core."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    paths = [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    builder = SparkSession.builder.master("local[*]").appName("headrace-bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def contenders(redis: str, stage: str) -> list[Contender]:
    """Return the estimators."""
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.feature import FeatureHasher

    from headrace.spark import HeadraceEstimator

    ids = [f"f{k + 1}" for k in range(IDS)]
    columns = [*ids, *(f"f{IDS + 1 + k}" for k in range(NUMBERS))]
    ours = HeadraceEstimator(
        spec=stream_spec(name="lr", more=LR).text, redis=redis, stage=stage, labelCol=LABEL
    )
    hasher = FeatureHasher(
        inputCols=columns, categoricalCols=ids, numFeatures=1 << 20, outputCol="features"
    )
    regression = LogisticRegression(
        labelCol=LABEL, maxIter=10, regParam=0.001, standardization=False
    )
    theirs = Pipeline(stages=[hasher, regression])
    return [
        Contender("headrace", ours, "rawPrediction"),
        Contender("spark_lr", theirs, "rawPrediction"),
    ]


class Measurement(NamedTuple):
    """One fit and one transform of a contender."""

    fit: float
    """Rows/s."""
    transform: float
    auc: float


def measure_one(each: Contender, table: DataFrame, rows: int, held_out: DataFrame) -> Measurement:
    """Fit and transform a table once."""
    from pyspark.ml.evaluation import BinaryClassificationEvaluator

    began = time.perf_counter()
    model = each.estimator.fit(table)
    fitted = time.perf_counter()
    model.transform(table).write.format("noop").mode("overwrite").save()
    scored = time.perf_counter()
    evaluator = BinaryClassificationEvaluator(labelCol=LABEL, rawPredictionCol=each.score)
    auc = evaluator.evaluate(model.transform(held_out))
    return Measurement(rows / (fitted - began), rows / (scored - fitted), float(auc))


def measure(size: Size, told: Callable[[str], object]) -> dict[str, Any]:
    """Return the figures."""
    from headrace.deploy.local.services.valkey import ValkeyNode
    from tests.running_server import running_server

    found: dict[str, list[Measurement]] = {}
    began, loads = time.perf_counter(), [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        stream = make_stream(size.rows + size.held_out, 1)
        for name, begin, end in (
            ("warm_up", 0, WARM_UP),
            ("learned", 0, size.rows),
            ("held_out", size.rows, len(stream)),
        ):
            write_table(stream, Path(folder, f"{name}.parquet"), begin, end, GROUP)
        with running_server(ValkeyNode(Path(folder, "valkey"))) as node:
            told("starting Spark")
            session = spark_session()
            cores = session.sparkContext.defaultParallelism
            warm_up, learned, held_out = (
                session.read.parquet(f"file://{folder}/{name}.parquet")
                for name in ("warm_up", "learned", "held_out")
            )
            for number in range(size.rounds + 1):
                table, rows = (learned, size.rows) if number else (warm_up, WARM_UP)
                for each in contenders(node.url, f"file://{folder}/stage"):
                    one = measure_one(each, table, rows, held_out if number else warm_up)
                    of_round = f"round {number} of {size.rounds}" if number else "warm-up"
                    told(
                        f"{of_round}, {each.name}: fit {one.fit:,.0f} rows/s, "
                        f"transform {one.transform:,.0f} rows/s, AUC {one.auc:.4f}"
                    )
                    if number:
                        found.setdefault(each.name, []).append(one)
            session.stop()
    loads.append(os.getloadavg()[0])
    return {
        **figures(found),
        "rows": size.rows,
        "rounds": size.rounds,
        "cores": cores,
        "load": [round(each, 1) for each in loads],
        "seconds": round(time.perf_counter() - began),
    }


def figures(found: dict[str, list[Measurement]]) -> dict[str, Any]:
    """Return the medians by contender, and the ratios to Spark's logistic regression."""
    middle = {
        name: Measurement(*(statistics.median(column) for column in zip(*runs, strict=True)))
        for name, runs in found.items()
    }
    ours, theirs = middle["headrace"], middle["spark_lr"]
    return {
        "fit_rows_per_second": {name: round(each.fit) for name, each in middle.items()},
        "transform_rows_per_second": {name: round(each.transform) for name, each in middle.items()},
        "auc": {name: round(each.auc, 4) for name, each in middle.items()},
        "fit_to_spark_lr": round(ours.fit / theirs.fit, 2),
        "transform_to_spark_lr": round(ours.transform / theirs.transform, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = bench_parser("spark", __doc__)
    parser.add_argument("--rounds", type=int, help="rounds that count; without --quick: 3")
    chosen = parser.parse_args(arguments)
    need_pyspark()
    console = Console(stderr=True)
    size = QUICK if chosen.quick else FULL
    found = measure(size._replace(rounds=chosen.rounds or size.rounds), console.print)
    print_figures(found, as_json=chosen.json)


if __name__ == "__main__":
    main()
