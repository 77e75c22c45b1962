"""The interfaces of models: what the loop calls to learn, and the server to predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.ingest.examples.batch import Examples
    from headrace.ingest.features.encoder import Encoded
    from headrace.learner.inputs.admission import AdmissionCounts
    from headrace.learner.inputs.required_rows import RequiredRows
    from headrace.learner.kernels.pending_deltas import PendingColumns
    from headrace.learner.models.explanations import Explanations, Tables
    from headrace.pserver.rows.table import RowTable


class TrainableModel(Protocol):
    """A model that the loop can train."""

    def rows_needed(self, examples: Examples) -> int:
        """Return an upper bound of the rows that `learn` adds."""

    def learn(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """Score, then learn; return the scores, shape (n,), NaN where an example is not scored.

        The caller reserved room for `rows_needed` in `view`, then asked for `gaining`.
        active: (buckets,) False where the bucket already has these examples: an id there changes
        neither view nor deltas.
        """

    def predict(
        self,
        view: RowTable,
        features: Encoded,
        event_ms: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions shown at `event_ms`; shape (n,).

        ends: (n,) the first impression after the request of each; None if all are of one request.
        Statistics are taken from the rows as they are now. Never adds a row.
        """


class Model(TrainableModel, Protocol):
    """A model of rows. One thread learns; any number may predict, each from a view of its own."""

    width: int
    """Floats a row."""
    memory: tuple[Any, ...]
    """All state besides rows, for a copy that learns on. It can be pickled."""

    @property
    def asked_rows(self) -> RequiredRows:
        """The rows that `predict` reads."""

    @property
    def admissions(self) -> AdmissionCounts:
        """Counts of admission decisions so far."""

    def uncertainty(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return how far one more outcome could move the log-odds of each answer; shape (n,).

        For weights stepped by coin it is the figure that ftrl would have (models.uncertainty).
        Raises NoUncertainty if the optimizer of the weights keeps no count of what it saw.
        """

    def explain(
        self, tables: Tables, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> Explanations:
        """Return what each field contributes to the log-odds of each answer. Never adds a row.

        tables: returns the rows that features need.
        """

    def layers_at(self, view: RowTable, now_s: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the layers by name, decayed to this second; empty without layers."""

    def forget(self) -> None:
        """Drop the memory of impressions: their clicks are learned with the rows of that time."""
