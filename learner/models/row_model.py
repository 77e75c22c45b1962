"""The base of all models of rows, and of those that call kernels example by example.

The kernels of a model that learns example by example take the same arguments in the same order:
columns, what is pending, which buckets are active, the model's constants, the inputs, working
memory, and the array for the scores. So the call is written once, here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.encoder import Encoded
from headrace.learner.calibration.isotonic import IsotonicScaling
from headrace.learner.calibration.platt import PlattScaling
from headrace.learner.calibration.shrinkage import ShrinkageMixture
from headrace.learner.inputs.admission import AdmissionCounts
from headrace.learner.inputs.click_delays import weigh_shows
from headrace.learner.inputs.example_inputs import BLOCK, LabelledColumns
from headrace.learner.inputs.preparation import InputPreparation
from headrace.learner.inputs.required_rows import RequiredRows
from headrace.learner.inputs.slates import longest_slate
from headrace.learner.kernels.loss import choose_in_each
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.kernels.row_values import parameters_of
from headrace.learner.models.explanations import (
    INTERCEPT_PART,
    Explanations,
    Tables,
    exact,
    leave_one_out,
    log_odds_of,
    part_names,
)
from headrace.learner.models.uncertainty import rates_of, uncertainty
from headrace.learner.spec.architecture import CHOICE
from headrace.learner.spec.calibration_spec import ISOTONIC, PLATT, SHRINKAGE
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.table import RowTable
from headrace.runtime.kernels.numba_kernels import CachedDispatch, read_only

_CALIBRATIONS = {
    PLATT: PlattScaling,
    ISOTONIC: IsotonicScaling,
    SHRINKAGE: ShrinkageMixture,
}


class RowModel(ABC):
    """A model whose inputs are those of its spec. One thread learns; any number may predict."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """`buckets`: of the store; required if the spec has an admission.

        Raises ValueError if it is missing then.
        """
        self.width = spec.width
        self._inputs = InputPreparation(spec, buckets)
        self._fields, self._part_names = spec.fields, part_names(spec)
        self._first_log_odds = spec.structure.first_log_odds
        self._delays_s = spec.structure.click_delays_s
        self._wait_s = spec.fields.label.wait_s
        self._name, self._optimizer = spec.name, spec.optimizer
        self._row_parameters = parameters_of(spec)
        window_ms = spec.fields.label.window_ms
        self._chosen = spec.structure.loss == CHOICE
        self._calibrated: PlattScaling | None = None
        if spec.calibration is not None:
            layer = _CALIBRATIONS[spec.calibration.kind]
            self._calibrated = layer(spec.calibration, window_ms, self._first_log_odds)

    @property
    def admissions(self) -> AdmissionCounts:
        """Counts of admission decisions so far."""
        return self._inputs.admissions

    @property
    def required_rows(self) -> RequiredRows:
        """The rows that `predict` reads."""
        return self._required_rows(np.zeros(0, np.uint64))

    def _required_rows(self, layers: npt.NDArray[np.uint64]) -> RequiredRows:
        if self._calibrated is not None:
            layers = np.concatenate((layers, self._calibrated.ids))
        return RequiredRows(self._inputs, layers)

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        layer = 0 if self._calibrated is None else self._calibrated.ids.shape[0]
        return self._inputs.rows_needed(examples) + layer

    def predict(
        self,
        view: RowTable,
        features: Encoded,
        event_ms: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions: see `TrainableModel`."""
        return self._scores(view, self._inputs.filled(view, features, event_ms), event_ms, ends)

    def _scores(
        self,
        view: RowTable,
        features: Encoded,
        event_ms: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return what `predict` does, for features with their histories."""
        scores = self._answers(view, features, event_ms)
        if self._chosen:
            choose_in_each(scores, np.full(len(scores), len(scores)) if ends is None else ends)
        if self._calibrated is not None:
            self._calibrated.apply(view, scores)
        return scores

    def uncertainty(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return how far one more outcome could move each answer's log-odds; shape (n,).

        It covers the weights alone: see learner.models.uncertainty. Never adds a row. Raises
        NoUncertainty.
        """
        rates = rates_of(self._optimizer, self._name)
        filled = self._inputs.filled(view, features, event_ms)
        return uncertainty(rates, self._row_parameters, self._inputs, view, filled, event_ms)

    def explain(
        self, tables: Tables, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> Explanations:
        """Return what each field contributes to the log-odds of each answer. Never adds a row.

        tables: returns the rows that features need, as a server with a cache must fetch them.
        """
        features = self._inputs.filled(tables(features, event_ms), features, event_ms)
        return leave_one_out(self._scores, self._fields, tables, features, event_ms)

    def learn(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """Score, then learn: see `TrainableModel`. The scores of clicks are NaN."""
        labelled = self._inputs.begin(active, examples)
        labelled = weigh_shows(view, labelled, self._delays_s, self._wait_s)
        active = read_only(active, np.bool_)
        examples = self._inputs.with_histories(view, gaining, active, examples, labelled)
        scores = self._learn_all(view, gaining, active, examples, labelled)
        if self._calibrated is not None:
            if self._inputs.pulling is not None:
                gaining = self._inputs.pulling.gaining
            self._calibrated.learn(view, gaining, active, labelled, scores)
        view.changed()
        scores[examples.kinds == Kind.CLICKED] = np.nan
        return scores

    @property
    def memory(self) -> tuple[Any, ...]:
        """All state besides rows: of impressions, admission and calibration. It can be pickled."""
        calibration = None if self._calibrated is None else self._calibrated.memory
        gate = self._inputs.gate
        return self._inputs.memory, gate.filter, gate.tally, calibration

    @memory.setter
    def memory(self, memory: tuple[Any, ...]) -> None:
        self._inputs.memory, counted, tally, calibration = memory
        self._inputs.gate = self._inputs.gate._replace(filter=counted, tally=tally)
        if self._calibrated is not None:
            self._calibrated.memory = calibration

    def layers_at(self, view: RowTable, now_s: int) -> dict[str, npt.NDArray[np.float32]]:  # noqa: ARG002
        """Return copies of the layers by name, decayed to this second; empty without layers."""
        return {}

    @abstractmethod
    def _answers(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return what `predict` does, before calibration."""

    @abstractmethod
    def _learn_all(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        labelled: LabelledColumns,
    ) -> npt.NDArray[np.float64]:
        """Return the score of every example, before calibration, made before learning it."""


class SequentialModel(RowModel):
    """A model of two compiled kernels, which walk a batch slate by slate."""

    def __init__(
        self,
        spec: ModelSpec,
        buckets: int,
        constants: tuple[Any, ...],
        learn: Callable[..., int],
        predict: Callable[..., None],
        contribute: Callable[..., None],
    ) -> None:
        super().__init__(spec, buckets)
        self._constants, self._learn, self._predict = constants, learn, CachedDispatch(predict)
        self._contribute = contribute

    @property
    @abstractmethod
    def _paired(self) -> bool:
        """Whether pairs of inputs are part of the log-odds."""

    @abstractmethod
    def _work(self, encoded: Encoded, block: int) -> tuple[Any, ...]:
        """Return the kernels' own working memory for blocks of so many examples."""

    def _answers(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        scores = np.empty(len(features), np.float64)
        self._predict(view.columns.ids, *self._prediction_inputs(view, features, event_ms), scores)
        return scores

    def _prediction_inputs(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> tuple[Any, ...]:
        """Return the arguments of the kernels that answer: rows, constants, inputs, memory."""
        inputs = self._inputs
        return (
            view.columns,
            self._constants,
            inputs.program,
            inputs.gate,
            inputs.features(features),
            read_only(event_ms, np.int64),
            inputs.scratch(features, 1),
            *self._work(features, 1),
        )

    def explain(
        self, tables: Tables, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> Explanations:
        """Return what each field contributes to the log-odds of each answer. Never adds a row."""
        view, names = tables(features, event_ms), self._part_names
        features = self._inputs.filled(view, features, event_ms)
        parts = np.zeros((len(features), len(names.names)))
        width = len(names.names) if self._paired else 0
        pairs = np.zeros((len(features), width, width))
        self._contribute(
            *self._prediction_inputs(view, features, event_ms),
            names.of_number,
            np.zeros((len(names.names), self.width)),
            parts,
            pairs,
        )
        parts[:, names.names.index(INTERCEPT_PART)] += self._first_log_odds
        calibration = np.zeros(0)
        if self._chosen or self._calibrated is not None:
            raw = parts.sum(axis=1) + pairs.sum(axis=(1, 2))
            scores = 1.0 / (1.0 + np.exp(-raw))
            if self._chosen:
                choose_in_each(scores, np.full(len(scores), len(scores)))
            if self._calibrated is not None:
                self._calibrated.apply(view, scores)
            calibration = log_odds_of(scores) - raw
        return exact(names, parts, pairs, calibration)

    def _learn_all(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
        labelled: LabelledColumns,
    ) -> npt.NDArray[np.float64]:
        """Learn slate by slate; stop where the rows of statistics must be fetched first."""
        inputs, scores = self._inputs, np.empty(len(examples))
        features, pulling = examples.features, inputs.pulling
        first = None if pulling is None else 0
        block = max(BLOCK, longest_slate(labelled.ends))
        while True:
            scratch = inputs.scratch(features, block)
            done = self._learn(
                view.columns,
                gaining,
                active,
                self._constants,
                inputs.program,
                inputs.memory,
                inputs.window_ms,
                inputs.gate,
                inputs.features(features),
                labelled,
                scratch,
                *self._work(features, block),
                scores,
                first,
            )
            if pulling is None or first is None or done == len(examples):
                return scores
            lacking = inputs.lacking(scratch)
            pulling.pull_statistics(lacking, examples, done)
            view.reserve(inputs.rows_needed(examples))
            gaining, first = pulling.gaining, done
