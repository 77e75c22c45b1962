"""A Spark application for the tests: fits, scores, saves, searches; prints what it found.

    python -m tests.learner.batch.spark_job MASTER REDIS FOLDER [--kill] [--search] [--stream]

It runs in an environment of its own, which Spark needs (`headrace.spark`). `--kill` kills an
executor while it learns. `--stream` scores and learns a stream, whose query fails midway.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.ml.evaluation import BinaryClassificationEvaluator
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.spark import HeadraceEstimator, HeadraceModel
from tests.learner.batch.spark_stream import one_pass_over, trained_once
from tests.learner.batch.staged_files import counters
from tests.learner.shop import CROSS, shop_rows, shop_spec

SPEC, ROWS, FILES = shop_spec(CROSS), 40_000, 8


def main() -> None:
    master, redis, folder, *flags = sys.argv[1:]
    session = _session(master)
    rows = shop_rows(ROWS * (5 if "--kill" in flags else 1))
    pq.write_table(rows, f"{folder}/log.parquet", row_group_size=rows.num_rows // FILES)
    table = session.read.parquet(f"file://{folder}/log.parquet").repartition(FILES)
    estimator = HeadraceEstimator(
        spec=SPEC.text, redis=redis, stage=f"file://{folder}/stage", labelCol="clicked"
    )
    if "--kill" in flags:
        _kill_an_executor_of(redis)
    begun = time.monotonic()
    model = estimator.fit(table)
    found: dict[str, Any] = {"fit_s": time.monotonic() - begun, "rows": rows.num_rows}
    assert model.model is not None
    found["once"] = counters(model.model.rows) == one_pass_over(SPEC, rows)
    found["left"] = sorted(each.name for each in Path(f"{folder}/stage").glob("*"))
    found["killed"] = KILLED
    evaluator = BinaryClassificationEvaluator(labelCol="clicked")
    begun = time.monotonic()
    scored = model.transform(table)
    found["auc"] = evaluator.evaluate(scored)
    found["transform_s"] = time.monotonic() - begun
    model.write().overwrite().save(f"file://{folder}/model")
    again = HeadraceModel.load(f"file://{folder}/model")
    found["saved"] = _probabilities(again, table) == _probabilities(model, table)
    if "--stream" in flags:
        found["streamed"] = _streamed(again, f"file://{folder}/log.parquet", table)
        found["trained"] = trained_once(session, estimator, Path(folder), rows)
    if "--search" in flags:
        found["search"] = _search(estimator, evaluator, table)
    session.stop()
    print(json.dumps(found))


def _session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("headrace")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _probabilities(model: HeadraceModel, table: DataFrame) -> list[float]:
    few = table.orderBy("timestamp_ms").limit(50)
    return [row.probability for row in model.transform(few).collect()]


def _streamed(model: HeadraceModel, url: str, table: DataFrame) -> bool:
    """Return whether a stream of the same rows gets the same scores."""
    session = table.sparkSession
    stream = session.readStream.schema(table.schema).parquet(url.replace("log.", "*."))
    scored = model.transform(stream).select("probability").writeStream.format("memory")
    scored.queryName("scored").trigger(availableNow=True).start().awaitTermination()
    probability = model.transform(table).select("probability")
    rows = (session.table("scored").collect(), probability.collect())
    streamed, expected = (sorted(row.probability for row in each) for each in rows)
    return streamed == expected


def _search(
    estimator: HeadraceEstimator, evaluator: BinaryClassificationEvaluator, table: DataFrame
) -> list[float]:
    free = estimator.copy()
    free.clear(free.spec)
    free.set(free.crosses, [["user", "item"]])
    grid = ParamGridBuilder().addGrid(free.alpha, [0.0001, 0.5]).build()
    search = CrossValidator(
        estimator=free, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, parallelism=2
    )
    return [float(each) for each in search.fit(table.drop("tags")).avgMetrics]


KILLED: list[int] = []


def _kill_an_executor_of(redis: str) -> None:
    """Kill an executor once any bucket has learned rows."""
    learned = HeadraceEstimator._learned

    def watched(self: Any, dataset: Any, run: Any, urls: Any) -> Any:
        def watch() -> None:
            store = headrace.spark._connect(redis, run.name)
            while True:
                try:
                    if any(answer.marks for answer in store.marks([0])):  # type: ignore[union-attr]
                        break
                except Exception:  # noqa: BLE001 (not created yet)
                    pass
                threading.Event().wait(0.02)
            victim = _executors()[0]
            os.kill(victim, signal.SIGKILL)
            KILLED.append(victim)

        threading.Thread(target=watch, daemon=True).start()
        return learned(self, dataset, run, urls)

    HeadraceEstimator._learned = watched  # type: ignore[method-assign]


def _executors() -> list[int]:
    """Return the processes of executors that are descendants of this one."""
    parents, commands = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            commands[int(entry.name)] = (entry / "cmdline").read_text()
        except OSError:
            continue
        parents[int(entry.name)] = int(stat[1])

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    backend = "CoarseGrainedExecutorBackend"
    return sorted(pid for pid, command in commands.items() if backend in command and ours(pid))


if __name__ == "__main__":
    main()
