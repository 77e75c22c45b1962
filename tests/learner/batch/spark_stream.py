"""Trains on a stream of Spark whose micro-batches fail and are repeated."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.learner.batch.store_fit.partition_tasks import LearnTask, RunSpec
from headrace.learner.batch.store_fit.run_store import rows_of
from headrace.learner.spec.model_spec import ModelSpec
from headrace.spark import HeadraceEstimator, StreamTrainer
from tests.learner.batch.staged_files import counters, one_pass
from tests.learner.shop import CROSS, shop_examples, shop_spec

PARTS, ROWS = 3, 3000


class KilledMidway(RuntimeError):
    """A micro-batch failed after some of its files."""


def one_pass_over(spec: ModelSpec, rows: pa.Table) -> dict[int, tuple[int, int]]:
    """Return shows and clicks by id after one pass over the rows in this process."""
    return one_pass(spec, shop_examples(rows, spec))


def trained_once(
    session: SparkSession, estimator: HeadraceEstimator, folder: Path, rows: pa.Table
) -> list[Any]:
    """Learn a stream of three files, one a micro-batch; return what held.

    The second micro-batch fails when half of its files are learned, and is repeated by a query that
    continues from the checkpoint, with its rows in another order. Then: whether shows and clicks
    equal one pass, whether a repeated and an old micro-batch change nothing, and the error of one
    whose staged files are lost midway.
    """
    spec = shop_spec(CROSS)
    rows = rows.slice(0, PARTS * ROWS)
    inputs = folder / "stream"
    inputs.mkdir()
    for part in range(PARTS):
        pq.write_table(rows.slice(part * ROWS, ROWS), inputs / f"{part}.parquet")
    expected, failed = one_pass_over(spec, rows), list[int]()
    trainer = StreamTrainer(estimator, "shop-log")

    def learn(batch: DataFrame, number: int) -> None:
        if number == 1 and not failed:
            failed.append(number)
            _fail_midway(trainer, batch.repartition(4), number)
        trainer(batch.orderBy("price").repartition(3), number)

    for _ in range(2):
        _run_query(session, folder, learn)
    found: list[Any] = [failed == [1] and _learned(estimator, spec) == expected]
    for number in (PARTS - 1, 0):
        trainer(session.read.parquet(f"file://{inputs}/{number}.parquet"), number)
        found.append(_learned(estimator, spec) == expected)
    batch = session.read.parquet(f"file://{inputs}/0.parquet").repartition(2)
    with contextlib.suppress(KilledMidway):
        _fail_midway(trainer, batch, PARTS)
    shutil.rmtree(folder / "stage" / "shop-log" / str(PARTS))
    try:
        trainer(batch, PARTS)
    except Exception as error:  # noqa: BLE001 (its name is the answer)
        found.append(type(error).__name__)
    store = estimator._connect()(spec.name)
    store.drop()
    store.close()
    return found


def _run_query(
    session: SparkSession, folder: Path, learn: Callable[[DataFrame, int], None]
) -> None:
    """Learn what the stream has, a file a micro-batch, until it ends or fails midway."""
    url = f"file://{folder}/stream"
    files = session.readStream.schema(session.read.parquet(url).schema)
    rows = files.option("maxFilesPerTrigger", 1).parquet(url)
    query = rows.writeStream.foreachBatch(learn).trigger(availableNow=True)
    try:
        query.option("checkpointLocation", f"file://{folder}/checkpoint").start().awaitTermination()
    except StreamingQueryException as error:
        if KilledMidway.__name__ not in str(error):
            raise


def _fail_midway(trainer: StreamTrainer, rows: DataFrame, number: int) -> None:
    """Learn the first file of a micro-batch, then raise KilledMidway."""
    run = headrace.spark._run

    def half(rows: DataFrame, task: LearnTask) -> None:
        run(rows, dataclasses.replace(task, places=task.places[:1]))
        raise KilledMidway

    headrace.spark._run = half  # type: ignore[assignment]
    try:
        trainer(rows, number)
    finally:
        headrace.spark._run = run


def _learned(estimator: HeadraceEstimator, spec: ModelSpec) -> dict[int, tuple[int, int]]:
    """Return shows and clicks by id, as the parameter server has them."""
    store = estimator._connect()(spec.name)
    try:
        return counters(rows_of(store, estimator._shape(RunSpec(spec.text, spec.name))))
    finally:
        store.close()
