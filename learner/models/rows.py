"""What models of rows have alike: their inputs, and how those that need no torch call kernels.

The kernels of a model that learns example by example take the same arguments in the same order:
columns, what is pending, which buckets are active, the model's constants, the inputs, working
memory, and the array for the scores. So the call is written here once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from learner.asked_rows import AskedRows
from learner.input_rows import InputRows, read_only
from learner.inputs import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from ingest.examples import Encoded, Examples
    from learner.admission import Admissions
    from learner.pending import Gaining
    from learner.spec import ModelSpec
    from pserver.table import RowTable


class ModelOfRows:
    """A model whose inputs are those of its spec. One thread learns; any number may predict."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """Make the model. Only one with admission has to know how many `buckets` its store has.

        Raises ValueError if it is not told.
        """
        self.width = spec.width
        self._inputs = InputRows(spec, buckets)

    @property
    def admissions(self) -> Admissions:
        """What was decided of ids without a row so far."""
        return self._inputs.admissions

    @property
    def asked_rows(self) -> AskedRows:
        """Which rows `predict` reads."""
        return AskedRows(self._inputs, np.zeros(0, np.uint64))

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        return self._inputs.rows_needed(examples)

    def forget(self) -> None:
        """Drop what is remembered of impressions: their clicks take the rows as they stand then."""
        self._inputs.forget()


class ExampleByExample(ModelOfRows, ABC):
    """A model that two compiled kernels make, each walking a batch example by example."""

    def __init__(
        self,
        spec: ModelSpec,
        buckets: int,
        constants: tuple[Any, ...],
        learn: Callable[..., None],
        predict: Callable[..., None],
    ) -> None:
        super().__init__(spec, buckets)
        self._constants, self._learn, self._predict = constants, learn, predict

    @abstractmethod
    def _work(self, encoded: Encoded) -> tuple[Any, ...]:
        """Return the working memory that the kernels take beside the inputs' own."""

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions shown at `event_ms`; shape (n,).

        Statistics are taken from the rows as they stand. Never adds a row.
        """
        inputs = self._inputs
        scores = np.empty(len(features), np.float64)
        self._predict(
            view.columns,
            self._constants,
            inputs.program,
            inputs.gate,
            inputs.features(features),
            read_only(event_ms, np.int64),
            inputs.scratch(features, 1),
            *self._work(features),
            scores,
        )
        return scores

    def learn(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """Score, then learn, example by example; return the scores, shape (n,), NaN for CLICKED.

        The caller reserved room for `rows_needed` in `view`, and `gaining` has its capacity.
        active: (buckets,) False where the bucket already has these examples: an id there changes
        neither view nor gains.
        """
        inputs = self._inputs
        labelled = inputs.begin(active, examples)
        scores = np.full(len(examples), np.nan)
        self._learn(
            view.columns,
            gaining,
            read_only(active, np.bool_),
            self._constants,
            inputs.program,
            inputs.memory,
            inputs.window_ms,
            inputs.gate,
            inputs.features(examples.features),
            labelled,
            inputs.scratch(examples.features, BLOCK),
            *self._work(examples.features),
            scores,
        )
        return scores
