"""Models: what the loop, serving and whoever else holds one needs of it, and how one is opened.

A model keeps all it has learned in rows of one width, in a view that it is handed; so whatever
holds for rows (exactly once, replicas, snapshots) holds for every model. Which one a spec means is
decided here, and what it needs is imported only then: a logistic regression never loads the
kernels, or the libraries, of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.learner.errors import MissingTorch
from headrace.learner.spec.architecture import FACTORIZATION_MACHINE, LOGISTIC_REGRESSION
from headrace.learner.spec.optimizer_spec import FTRL

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from headrace.ingest.examples.batch import Examples
    from headrace.ingest.features.encoder import Encoded
    from headrace.learner.inputs.admission import AdmissionCounts
    from headrace.learner.inputs.required_rows import RequiredRows
    from headrace.learner.kernels.pending_gains import PendingColumns
    from headrace.learner.spec.model_spec import ModelSpec
    from headrace.pserver.rows.table import RowTable


class TrainableModel(Protocol):
    """What the loop needs of a model."""

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
        neither view nor gains.
        """


class Model(TrainableModel, Protocol):
    """A model of rows. One thread learns; any number may predict, each from a view of its own."""

    width: int
    """Floats a row."""

    @property
    def asked_rows(self) -> RequiredRows:
        """Which rows `predict` reads."""

    @property
    def admissions(self) -> AdmissionCounts:
        """What was decided of ids without a row so far."""

    def predict(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of a click of n impressions shown at `event_ms`; shape (n,).

        Statistics are taken from the rows as they stand. Never adds a row.
        """

    def uncertainty(
        self, view: RowTable, features: Encoded, event_ms: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return how far one more outcome could move the log-odds of each answer; shape (n,).

        Where coin steps the weights: how far it could if ftrl did (learner.models.uncertainty).
        Raises NoUncertainty where the optimizer of the weights keeps no count of what was seen.
        """

    def forget(self) -> None:
        """Drop what is remembered of impressions: their clicks take the rows as they stand then."""


def open_model(spec: ModelSpec, buckets: int = 0) -> Model:
    """Return the model that the spec declares.

    buckets: of its store; only a spec with admission has to say. Raises ValueError if it does not,
    UnfitModule if a module of the user's cannot be used, MissingTorch where torch is not installed.
    """
    if spec.architecture == LOGISTIC_REGRESSION and spec.optimizer.name == FTRL:
        from headrace.learner.models.logistic import LogisticRegression

        return LogisticRegression(spec, buckets)
    if spec.architecture in (LOGISTIC_REGRESSION, FACTORIZATION_MACHINE):
        # without dimensions a factorization machine is a logistic regression, of any optimizer
        from headrace.learner.models.factorization_machine import FactorizationMachine

        return FactorizationMachine(spec, buckets)
    try:
        from headrace.learner.models.deep.deep_model import DeepModel
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingTorch(spec.architecture) from error
    return DeepModel(spec, buckets)
