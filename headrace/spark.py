"""headrace as an estimator of Spark ML: learns DataFrames where the data is, and scores them.

`pip install 'headrace[spark]'`, in an environment of its own: Spark 4.2 needs pandas below 3.

A fit stages the prepared rows as Parquet once. Plain `mapInArrow` tasks then learn the files into
one parameter server (Redis or Valkey, which all executors reach). Each file is a source of its own
in the marks (`headrace.learner.batch.store_fit`), so retries, speculative copies and lost executors
count each row once. No stage has a barrier: if an executor is lost, its tasks are
repeated, and no others. The driver folds the logs meanwhile, copies the rows and drops the model
from the parameter server. *Refused:* a barrier stage with an all-reduce, as xgboost.spark has it.
It rules out dynamic allocation, and one lost task repeats the stage.

`StreamTrainer` learns the micro-batches of a streaming query into a model that stays in the
parameter server, each exactly once.

A transform sends the rows to the executors once, as a broadcast. It works on streams, too.
"""

from __future__ import annotations

import functools
import os
import pickle
import secrets
from collections.abc import Callable
from typing import Any

import fsspec
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasWeightCol,
)
from pyspark.ml.util import (
    DefaultParamsReadable,
    DefaultParamsReader,
    DefaultParamsWritable,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, StructField, StructType

from headrace.ingest.events.contract import REQUEST_ID, TIME
from headrace.learner.batch.store_fit.partition_tasks import (
    LearnTask,
    RunSpec,
    ScoreTask,
    StageTask,
)
from headrace.learner.batch.store_fit.run_store import (
    ensure_model,
    folded,
    heads_of,
    rows_of,
    run_shape,
)
from headrace.learner.batch.store_fit.spark_micro_batches import (
    SparkMicroBatch,
    SparkMicroBatchState,
    StagedRowsMissing,
)
from headrace.learner.batch.store_fit.staged_file import staged_places
from headrace.learner.local.derived_spec import SpecOptions, derive_spec
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.local.table_examples import TableEncoder
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.pserver.redis_backend.address import with_login
from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import Shape, Store

__all__ = ["HeadraceEstimator", "HeadraceModel", "StreamTrainer"]

_STAGED = "rows long, examples binary"
_LEARNED = "number long, rows long"


def _param(name: str, doc: str, converter: Callable[[Any], Any]) -> Param[Any]:
    return Param(Params._dummy(), name, doc, converter)  # noqa: SLF001 (as every Param is made)


class _Columns(HasLabelCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol, HasWeightCol):  # type: ignore[misc]
    """The names of columns that estimator and model share."""


class HeadraceEstimator(_Columns, HasSeed, Estimator, DefaultParamsReadable, DefaultParamsWritable):  # type: ignore[misc]
    """Learns a DataFrame with labels 0 and 1.

    `spec` is the text of a model spec, whose `source` names are columns. Without it, each column
    becomes a field, as in `headrace.sklearn.HeadraceClassifier`: floats a number, lists a bag,
    everything else an id. A column `timestamp_ms` is the time of a row.

    `redis` and `stage` are required: the URL of the parameter server, and a folder or URL that the
    driver and all executors reach. HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD of the driver
    complete the URL.
    """

    spec: Param[str] = _param("spec", "text of a model spec", TypeConverters.toString)
    redis: Param[str] = _param("redis", "URL of Redis or Valkey", TypeConverters.toString)
    stage: Param[str] = _param("stage", "folder for prepared rows", TypeConverters.toString)
    architecture: Param[str] = _param(
        "architecture", "without spec: of [model]", TypeConverters.toString
    )
    optimizer: Param[str] = _param(
        "optimizer", "without spec: of the weights", TypeConverters.toString
    )
    crosses: Param[list[list[str]]] = _param(
        "crosses", "without spec: columns to cross", TypeConverters.toList
    )
    alpha: Param[float] = _param("alpha", "without spec: learning rate", TypeConverters.toFloat)
    l2: Param[float] = _param("l2", "without spec: penalty of the weights", TypeConverters.toFloat)
    dimensions: Param[int] = _param(
        "dimensions", "without spec: of the vectors", TypeConverters.toInt
    )
    epochs: Param[int] = _param("epochs", "passes over the rows", TypeConverters.toInt)
    buckets: Param[int] = _param(
        "buckets", "of the parameter server, a power of two", TypeConverters.toInt
    )

    def __init__(self, **params: Any) -> None:
        """`params`: by their names, such as `labelCol="clicked"`."""
        super().__init__()
        self._setDefault(
            architecture="logistic_regression", optimizer="ftrl", crosses=[], epochs=1, buckets=16
        )
        self._set(**params)

    def _fit(self, dataset: DataFrame) -> HeadraceModel:
        spec, token = self._checked_spec(dataset), secrets.token_hex(4)
        epochs = self.getOrDefault(self.epochs)
        if epochs > 1 and spec.statistics:
            raise ValueError(
                "epochs: expected 1, since the spec has [statistics.*] and rows would count each "
                f"example {epochs} times, got {epochs}"
            )
        run = RunSpec(spec.text, f"{spec.name}-{token}")
        folder = f"{self.getOrDefault(self.stage).rstrip('/')}/{token}"
        try:
            urls = self._staged(dataset, spec, run, folder)
            rows = self._learned(dataset, run, urls)
        finally:
            _remove(folder)
        fitted = HeadraceModel(InMemoryModel.of_rows(spec, rows, self.getOrDefault(self.buckets)))
        copied: HeadraceModel = self._copyValues(fitted)
        return copied

    def _checked_spec(self, dataset: DataFrame) -> ModelSpec:
        """Return the spec. Raises ValueError if it or a required parameter does not fit."""
        for param in (self.redis, self.stage):
            if not self.isSet(param):
                raise ValueError(f"HeadraceEstimator: expected {param.name}={param.doc}, got none")
        spec = self._spec_of(dataset)
        if spec.histories:
            raise ValueError(
                f'model "{spec.name}": expected no field of transform history, since tasks learn '
                f"files at the same time, got {', '.join(spec.histories)}"
            )
        if spec.structure.synchronous:
            raise ValueError(
                f'model "{spec.name}": expected [model] synchronous = false, since tasks learn '
                "independently, got true"
            )
        return spec

    def _spec_of(self, dataset: DataFrame) -> ModelSpec:
        if self.isSet(self.spec):
            return parse_spec(self.getOrDefault(self.spec), "spec")
        apart = {self.getLabelCol(), self._weight()}
        kinds = {each.name: each.type for each in to_arrow_schema(dataset.schema)}
        alpha, l2, dimensions = (
            self.getOrDefault(param) if self.isDefined(param) else None
            for param in (self.alpha, self.l2, self.dimensions)
        )
        options = SpecOptions(
            self.getOrDefault(self.architecture),
            self.getOrDefault(self.crosses),
            None,
            self.getOrDefault(self.optimizer),
            alpha,
            l2,
            dimensions,
            self.getSeed() if self.isSet(self.seed) else None,
        )
        return derive_spec({k: kind for k, kind in kinds.items() if k not in apart}, options)

    def _weight(self) -> str:
        return str(self.getWeightCol()) if self.isSet(self.weightCol) else ""

    def _staged(self, dataset: DataFrame, spec: ModelSpec, run: RunSpec, folder: str) -> list[str]:
        """Write the prepared rows; return the files."""
        weight, label = self._weight(), self.getLabelCol()
        used = {*TableEncoder(spec.fields).sources, TIME, REQUEST_ID, spec.fields.weights.source}
        names = [name for name in dataset.columns if name in used and name not in (label, weight)]
        chosen = dataset.select(*names, label, *([weight] if weight else []))
        chosen.mapInArrow(StageTask(run, label, weight), _STAGED).write.parquet(folder)
        return _staged_files(folder)

    def _learned(self, dataset: DataFrame, run: RunSpec, urls: list[str]) -> FoldedRows:
        """Learn the files in tasks; return all rows."""
        connect, shape = self._connect(), self._shape(run)
        store = connect(run.name)
        try:
            store.create(shape)
            with folded(connect(run.name), "headrace.spark"):
                for epoch in range(self.getOrDefault(self.epochs)):
                    task = LearnTask(run, staged_places(urls, run.name, epoch), connect)
                    _run(dataset, task)
                return rows_of(store, shape)
        finally:
            store.drop()
            store.close()

    def _connect(self) -> Callable[[str], Store]:
        return functools.partial(_connect, _complete(self.getOrDefault(self.redis)))

    def _shape(self, run: RunSpec) -> Shape:
        return run_shape(run.read(), self.getOrDefault(self.buckets))


class StreamTrainer:
    """Learns the micro-batches of a streaming query: the function of its `foreachBatch`.

    The model has the name of the spec and stays in the parameter server, which servers read. It is
    created if it is missing. `source` names the query in the marks: a query with a new checkpoint
    counts its micro-batches from 0 again, so it needs a new model. Only micro-batches in the order
    of their numbers are learned, and each row of them counts once, however often Spark repeats the
    last one. Keepers (`headrace pserver keep`) fold the logs.
    """

    def __init__(self, estimator: HeadraceEstimator, source: str) -> None:
        """`estimator`: with the parameters of a fit; `epochs` must be 1."""
        if estimator.getOrDefault(estimator.epochs) != 1:
            raise ValueError("StreamTrainer: expected epochs=1, since a stream passes once")
        self._estimator, self._source = estimator, source

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Learn a micro-batch. Raises StagedRowsMissing if its files are gone midway."""
        estimator, batch = self._estimator, SparkMicroBatch(self._source, number)
        spec = estimator._checked_spec(rows)  # noqa: SLF001 (its trainer)
        run, connect = RunSpec(spec.text, spec.name), estimator._connect()  # noqa: SLF001
        state = _state_of(batch, connect(run.name), estimator._shape(run))  # noqa: SLF001
        if state is SparkMicroBatchState.PASSED:
            return
        parent = f"{estimator.getOrDefault(estimator.stage).rstrip('/')}/{self._source}"
        folder = f"{parent}/{number}"
        if not _exists(f"{folder}/_SUCCESS"):
            if state is SparkMicroBatchState.BEGUN:
                raise StagedRowsMissing(batch, folder)
            _remove(folder)
            estimator._staged(rows, spec, run, folder)  # noqa: SLF001
        places = staged_places(_staged_files(folder), batch.source, first=batch.first)
        _run(rows, LearnTask(run, places, connect))
        _remove_all_but(parent, str(number))


class HeadraceModel(_Columns, Model, MLReadable, MLWritable):  # type: ignore[misc]
    """Scores DataFrames.

    `transform` adds three columns of doubles: `probability` of a click, `rawPrediction`, its
    log-odds, and `prediction`, 0 or 1. An evaluator of Spark reads them.
    """

    def __init__(self, model: InMemoryModel | None = None) -> None:
        super().__init__()
        self.model = model
        """The rows. `save` writes a snapshot that `headrace serving run` serves."""
        self._sent: Any = None

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if self._sent is None:
            sent = dataset.sparkSession.sparkContext.broadcast(pickle.dumps(self.model))
            self._sent = sent, secrets.token_hex(8)
        rows, token = self._sent
        names = (self.getProbabilityCol(), self.getRawPredictionCol(), self.getPredictionCol())
        more = [StructField(name, DoubleType()) for name in names]
        schema = StructType([*dataset.schema.fields, *more])
        return dataset.mapInArrow(ScoreTask(rows, token, names), schema)

    def write(self) -> MLWriter:
        """Return the writer of metadata and snapshot."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[HeadraceModel]:
        """Return the reader of what `write` wrote."""
        return _ModelReader()


class _ModelWriter(MLWriter):  # type: ignore[misc]
    def __init__(self, instance: HeadraceModel) -> None:
        super().__init__()
        self._instance = instance

    def saveImpl(self, path: str) -> None:  # noqa: N802
        DefaultParamsWriter.saveMetadata(self._instance, path, self.sparkSession)
        assert self._instance.model is not None
        self._instance.model.save(f"{path}/snapshot")


class _ModelReader(MLReader[HeadraceModel]):  # type: ignore[misc]
    def load(self, path: str) -> HeadraceModel:
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        found = HeadraceModel(InMemoryModel.load(f"{path}/snapshot"))
        found._resetUid(metadata["uid"])  # noqa: SLF001 (as Spark's own readers do)
        DefaultParamsReader.getAndSetParams(found, metadata)
        return found


def _complete(url: str) -> str:
    """Return the URL with the driver's login: executors have no environment of their own."""
    user, password = (os.environ.get(f"HEADRACE_REDIS_{name}") for name in ("USER", "PASSWORD"))
    return with_login(url, user, password)


def _connect(url: str, model: str) -> Store:
    return open_store(url, model, StoreSettings())


def _run(dataset: DataFrame, task: LearnTask) -> None:
    """Run a task of Spark for each file."""
    count = len(task.places)
    files = dataset.sparkSession.range(0, count, 1, max(count, 1))
    files.mapInArrow(task, _LEARNED).collect()


def _state_of(batch: SparkMicroBatch, store: Store, shape: Shape) -> SparkMicroBatchState:
    """Return the state of a micro-batch in a model, which is created if it is missing."""
    try:
        heads = heads_of(store, ensure_model(store, shape))
    finally:
        store.close()
    return batch.state(head.marks for head in heads)


def _staged_files(folder: str) -> list[str]:
    files, path = fsspec.core.url_to_fs(folder)
    return sorted(files.unstrip_protocol(each) for each in files.glob(f"{path}/*.parquet"))


def _exists(url: str) -> bool:
    files, path = fsspec.core.url_to_fs(url)
    return bool(files.exists(path))


def _remove_all_but(parent: str, name: str) -> None:
    """Remove the folders in `parent`, but one."""
    files, path = fsspec.core.url_to_fs(parent)
    for each in files.ls(path, detail=False):
        if each.rstrip("/").rpartition("/")[2] != name:
            files.rm(each, recursive=True)


def _remove(folder: str) -> None:
    files, path = fsspec.core.url_to_fs(folder)
    if files.exists(path):
        files.rm(path, recursive=True)
