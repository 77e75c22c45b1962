"""A scikit-learn classifier with a headrace model: learns tables, predicts probabilities.

It learns the rows in their order, each once per epoch, with the encoder, kernels and rows of the
service. Its snapshot can therefore be served and restored like any other. Rows are learned one
after another, as from a stream (deep architectures: by `mini_batch`). `partial_fit` continues where
`fit` ended, and the order of rows matters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from headrace.learner.local.derived_spec import SpecOptions, derive_spec
from headrace.learner.local.in_memory_model import InMemoryModel
from headrace.learner.local.onnx_export import export_onnx
from headrace.learner.local.table_examples import TableEncoder, learnable_times, times_of
from headrace.learner.spec.model_spec import ModelSpec, load_spec
from headrace.learner.validation.progressive import LEAST
from headrace.runtime.clock import wall_ms
from headrace.runtime.counted_nouns import counted

Columns = Mapping[str, pa.Array]

_ROWS_A_BLOCK = 65_536


class HeadraceClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier for scikit-learn: Pipeline, GridSearchCV, joblib and pickle work.

    X is a DataFrame (pandas 2.2 or later, polars, Arrow) or an array of numbers. A column
    `timestamp_ms` is the time of a row; the default is now.

    Without `spec`, each column becomes a field. A column of floats becomes a number, one of lists a
    bag, and `timestamp_ms` the hour of the day. Any other column, also of whole numbers, becomes an
    id. The input of a number x is sign(x) log(1 + |x|); scale numbers whose differences are small.

    Fitted attributes: `classes_`, (2,); `spec_`, the ModelSpec; `feature_names_in_` and
    `n_features_in_` as everywhere in scikit-learn.
    """

    def __init__(
        self,
        spec: ModelSpec | Path | str | None = None,
        *,
        architecture: str = "logistic_regression",
        crosses: Sequence[Sequence[str]] = (),
        numbers: Sequence[str] | None = None,
        optimizer: str = "ftrl",
        alpha: float | None = None,
        l2: float | None = None,
        dimensions: int | None = None,
        epochs: int = 1,
        random_state: int | None = None,
    ) -> None:
        """Keep the parameters; `fit` checks them.

        `spec`: a spec, or the path of its TOML file; its `source` names are columns. All parameters
        below but `epochs` then keep their defaults. `architecture`: a name of `[model]`. `crosses`:
        lists of columns whose combinations get weights of their own. `numbers`: columns to weigh
        by their value; by default those with floats. `optimizer`, `alpha`, `l2`: of the weights.
        `dimensions`: of the vectors of other architectures. `epochs`: passes over the rows in
        `fit`; more than one overfits ids with few rows. `random_state`: seed of initial vectors
        and layers.
        """
        self.spec = spec
        self.architecture = architecture
        self.crosses = crosses
        self.numbers = numbers
        self.optimizer = optimizer
        self.alpha = alpha
        self.l2 = l2
        self.dimensions = dimensions
        self.epochs = epochs
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Two classes only; a missing value is absent."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        return tags

    # ------------------------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HeadraceClassifier:  # noqa: N803
        """Learn n rows from an empty model, in their order, `epochs` times.

        y: (n,) of two classes; the greater one is the click. sample_weight: (n,) from 0 up; a row
        of weight 2 counts about as much as two rows. Raises ValueError for other targets and for
        times more than a day ahead, and SpecError.
        """
        if self.epochs < 1:
            raise ValueError(f"epochs: expected 1 or more, got {self.epochs}")
        columns, count, target = self._columns(X, y, reset=True)
        self.classes_ = _two_classes(np.unique(target))
        self._begin(columns)
        for _ in range(self.epochs):
            self._learn(columns, count, target, sample_weight)
        return self

    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> HeadraceClassifier:
        """Learn n more rows once.

        `classes`: the two classes; required at the first call if y has only one. The columns of the
        first call decide the fields.
        """
        first = not hasattr(self, "model_")
        columns, count, target = self._columns(X, y, reset=first)
        if first:
            self.classes_ = _two_classes(np.unique(target if classes is None else classes))
            self._begin(columns)
        unknown = np.setdiff1d(target, self.classes_)
        if unknown.shape[0]:
            raise ValueError(
                f"y: expected classes among {self.classes_.tolist()}, got {unknown.tolist()}"
            )
        self._learn(columns, count, target, sample_weight)
        return self

    def _begin(self, columns: Columns) -> None:
        spec = self.spec
        if spec is None:
            options = SpecOptions(
                architecture=self.architecture,
                crosses=self.crosses,
                numbers=self.numbers,
                optimizer=self.optimizer,
                alpha=self.alpha,
                l2=self.l2,
                dimensions=self.dimensions,
                seed=self.random_state,
            )
            spec = derive_spec({name: values.type for name, values in columns.items()}, options)
        else:
            spec = spec if isinstance(spec, ModelSpec) else load_spec(spec)
            _check_columns(spec, columns)
        self._use(InMemoryModel(spec))

    def _use(self, model: InMemoryModel) -> None:
        self.model_ = model
        self.spec_ = model.spec
        self._rows = 0

    def _learn(
        self, columns: Columns, count: int, target: npt.NDArray[Any], sample_weight: Any
    ) -> None:
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(
                sample_weight, target, dtype=np.float32, ensure_non_negative=True
            )
        labels = (target == self.classes_[1]).astype(np.uint8)
        encoder, now_ms = TableEncoder(self.model_.spec.fields), wall_ms()
        for begin, part, size in _blocks(columns, count):
            rows = slice(begin, begin + size)
            examples = encoder.examples(
                part,
                learnable_times(part, size, now_ms),
                labels[rows],
                None if weights is None else weights[rows],
                self._rows + begin,
            )
            self.model_.learn(examples)
        self._rows += count

    # ----------------------------------------------------------------------------- predicting

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class in the order of `classes_`; shape (n, 2)."""
        check_is_fitted(self)
        columns, count, _ = self._columns(X, None, reset=False)
        encoder, now_ms = TableEncoder(self.model_.spec.fields), wall_ms()
        clicks = np.empty(count)
        for begin, part, size in _blocks(columns, count):
            times = times_of(part, size, now_ms)
            features, alone = encoder.features(part, times), np.arange(1, size + 1)
            clicks[begin : begin + size] = self.model_.predict(features, times, alone)
        return np.column_stack((1.0 - clicks, clicks))

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:  # noqa: N803
        """Return the log-odds of the second class; shape (n,)."""
        clicks = self.predict_proba(X)[:, 1]
        return np.asarray(logit(np.clip(clicks, LEAST, 1.0 - LEAST)))

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """Return the more probable class of each row; shape (n,)."""
        chosen = self.decision_function(X) > 0
        found: npt.NDArray[Any] = self.classes_[chosen.astype(np.intp)]
        return found

    # -------------------------------------------------------------------------------- snapshots

    def to_snapshot(self, folder: Path | str) -> str:
        """Write the model as a snapshot; return its name. Raises StorageFailed.

        `headrace serving run --snapshot` serves it, `headrace pserver restore` loads it into a
        parameter server, where learners continue with it.
        """
        check_is_fitted(self)
        return self.model_.save(folder)

    def to_onnx(self, path: Path | str) -> None:
        """Write the model as one ONNX file, for a device; see `headrace export`.

        Raises NotExportable, MissingOnnx.
        """
        check_is_fitted(self)
        export_onnx(self.model_, path)

    @classmethod
    def from_snapshot(cls, folder: Path | str, name: str | None = None) -> HeadraceClassifier:
        """Return a fitted classifier with the rows of a snapshot; classes 0 and 1.

        `name`: the snapshot in the folder, by default the newest. Raises NoSnapshot,
        DamagedSnapshot, StorageFailed.
        """
        model = InMemoryModel.load(folder, name)
        found = cls(model.spec)
        found.classes_ = np.array([0, 1])
        found._use(model)
        return found

    # ----------------------------------------------------------------------------------- input

    def _columns(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        reset: bool,
    ) -> tuple[Columns, int, npt.NDArray[Any]]:
        """Return the columns of X, the number of its rows, and y as an array of one dimension."""
        if hasattr(X, "__arrow_c_stream__"):
            checked = self._checked(X, y, reset=reset, skip_check_array=True)
            table = _table(X)
            count = table.num_rows
            columns: Columns = {name: _one_chunk(table[name]) for name in table.column_names}
        else:
            checked = self._checked(
                X, y, reset=reset, dtype="numeric", ensure_all_finite="allow-nan"
            )
            columns = _array_columns(np.asarray(checked if y is None else checked[0]))
            count = len(next(iter(columns.values())))
        target = np.zeros(0) if y is None else _checked_target(checked[1], count)
        return columns, count, target

    def _checked(
        self,
        X: Any,  # noqa: N803
        y: Any,
        *,
        reset: bool,
        **checks: Any,
    ) -> Any:
        if not reset and not hasattr(self, "n_features_in_"):  # a snapshot names no columns
            return X if y is None else (X, y)
        target = {"y": y} if reset or y is not None else {}
        return validate_data(self, X, reset=reset, **target, **checks)


def _checked_target(y: Any, count: int) -> npt.NDArray[Any]:
    check_classification_targets(y)
    target = np.asarray(y)
    if target.ndim == 2 and target.shape[1] == 1:
        target = target.reshape(-1)
    kind = type_of_target(target, input_name="y", raise_unknown=True)
    if kind != "binary":
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {kind}."
        )
    if target.shape[0] != count:
        raise ValueError(f"y: expected {count} values, one a row of X, got {target.shape[0]}")
    return target


def _array_columns(values: npt.NDArray[Any]) -> Columns:
    """Return the columns of an array, named x0, x1, ..."""
    if not np.isrealobj(values):
        raise ValueError("Complex data not supported: expected an array of real numbers")
    return {
        f"x{place}": pa.array(np.ascontiguousarray(values[:, place]))
        for place in range(values.shape[1])
    }


def _check_columns(spec: ModelSpec, columns: Columns) -> None:
    """Raise ValueError if columns are misnamed, warn if some are missing."""
    try:
        missing = TableEncoder(spec.fields).lacking(columns)
    except ValueError as error:
        raise ValueError(f"X: {error}") from error
    if missing:
        warnings.warn(
            f"X: expected a column for each field of the spec, got none for {', '.join(missing)}. "
            "The model learns without them",
            stacklevel=4,
        )


def _table(frame: Any) -> pa.Table:
    try:
        return pa.table(frame).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(
            f"X: expected columns with values of one type each, got: {'; '.join(error.args)}. "
            "Convert such a column, as with astype(str)"
        ) from error


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.combine_chunks()
    return chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)


def _blocks(columns: Columns, count: int) -> Iterator[tuple[int, Columns, int]]:
    """Yield the first row, the columns and the size of each block of rows."""
    for begin in range(0, count, _ROWS_A_BLOCK):
        size = min(_ROWS_A_BLOCK, count - begin)
        yield begin, {name: values.slice(begin, size) for name, values in columns.items()}, size


def _two_classes(classes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if classes.shape[0] != 2:
        got = counted(classes.shape[0], "class", "classes")
        raise ValueError(f"y: expected two classes, got {got}: {classes.tolist()}")
    return classes
