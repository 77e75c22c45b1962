"""Logistic regression on the rows of ids, learned example by example, the model of most CTR teams.

The inputs of an example (learner.inputs) are rows with one weight each; an item that is in a bag
twice is two inputs. `learn` walks a batch in one compiled kernel: find the rows, take the
statistics, add up the weights, note the score, step, count. Example by example means exactly that:
learning a stream in batches of one or of a thousand gives the same rows, bit for bit.

An id in a bucket that already has the example changes nothing there, but its weight counts in the
sum all the same. The same forward pass answers requests (`predict`), from the rows as they stand.

Where the spec has an admission, an id without a row is learned and read in the rare row of its
field (learner.rare_rows), until it is admitted (learner.admission).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from learner.ftrl import constants
from learner.input_rows import InputRows, read_only
from learner.inputs import BLOCK
from learner.logistic_kernels import learn, predict

if TYPE_CHECKING:
    import numpy.typing as npt

    from ingest.examples import Encoded, Examples
    from learner.admission import Admissions
    from learner.pending import Gaining
    from learner.spec import ModelSpec
    from pserver.table import RowTable


class LogisticRegression:
    """The model of a spec. One thread learns; any number may predict from a view of their own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """Make the model. Only one with admission has to know how many `buckets` its store has.

        Raises ValueError if it is not told.
        """
        optimizer = spec.optimizer
        self.width = spec.width
        self._ftrl = constants(optimizer.alpha, optimizer.beta, optimizer.l1, optimizer.l2)
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
            self._ftrl,
            inputs.program,
            inputs.gate,
            inputs.features(features),
            read_only(event_ms, np.int64),
            inputs.scratch(features, 1),
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
            self._ftrl,
            inputs.program,
            inputs.memory,
            inputs.window_ms,
            inputs.gate,
            inputs.features(examples.features),
            labelled,
            inputs.scratch(examples.features, BLOCK),
            scores,
        )
        return scores

    def forget(self) -> None:
        """Drop what is remembered of impressions: their clicks take the rows as they stand then."""
        self._inputs.forget()
