"""The interface of a model that the loop calls. `RowModel` is the base of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.ingest.examples.batch import Examples
    from headrace.ingest.features.encoder import Encoded
    from headrace.learner.kernels.pending_deltas import PendingColumns
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
