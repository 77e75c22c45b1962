"""Factorization machine: a weight and a vector a row, all pairs of inputs, example by example.

    y = w0 + sum_i w_i x_i + sum_{i < j} <v_i, v_j> x_i x_j        (Rendle 2010, eq. 1)

The inputs are those of every model (learner.inputs): ids, numbers, items of bags, statistics. A
vector's value is what it began with (learner.initial) plus what it gained. As with logistic
regression, learning a stream in batches of any size gives the same rows, bit for bit; without
dimensions it *is* logistic regression, with whichever optimizer the weights have.

An input that an example has twice (an item of a bag) is two inputs, in pairs as well, and its row
is stepped twice. What is predicted from a rare row gives the gradient; what is stepped is the row
that the input counts in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from learner.input_rows import InputRows, read_only
from learner.inputs import BLOCK
from learner.models.factorization_kernels import Work, learn, predict
from learner.row_values import parameters_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from ingest.examples import Encoded, Examples
    from learner.admission import Admissions
    from learner.pending import Gaining
    from learner.spec import ModelSpec
    from pserver.table import RowTable


class FactorizationMachine:
    """The model of a spec. One thread learns; any number may predict from a view of their own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """Only a spec with admission has to know how many `buckets` its store has.

        Raises ValueError if it is not told.
        """
        self.width = spec.width
        self._machine = parameters_of(spec)
        self._inputs = InputRows(spec, buckets)

    @property
    def admissions(self) -> Admissions:
        """What was decided of ids without a row so far."""
        return self._inputs.admissions

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""
        return self._inputs.rows_needed(examples)

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions shown at `event_ms`; shape (n,).

        Statistics are taken from the rows as they stand. Never adds a row.
        """
        inputs = self._inputs
        scores = np.empty(len(features), np.float64)
        predict(
            view.columns,
            self._machine,
            inputs.program,
            inputs.gate,
            inputs.features(features),
            read_only(event_ms, np.int64),
            inputs.scratch(features, 1),
            self._work(features),
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
        learn(
            view.columns,
            gaining,
            read_only(active, np.bool_),
            self._machine,
            inputs.program,
            inputs.memory,
            inputs.window_ms,
            inputs.gate,
            inputs.features(examples.features),
            labelled,
            inputs.scratch(examples.features, BLOCK),
            self._work(examples.features),
            scores,
        )
        return scores

    def forget(self) -> None:
        """Drop what is remembered of impressions: their clicks take the rows as they stand then."""
        self._inputs.forget()

    def _work(self, encoded: Encoded) -> Work:
        inputs, dimensions = self._inputs.most_inputs(encoded), self._machine.vectors.coordinates
        return Work(
            np.empty((inputs, dimensions), np.float32),
            np.empty(dimensions, np.float32),
            np.empty(dimensions, np.float32),
            np.empty(1, np.float32),
        )
