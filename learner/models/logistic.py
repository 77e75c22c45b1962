"""Logistic regression on the rows of ids, learned example by example: the model of most CTR teams.

The inputs of an example (learner.inputs.example_inputs) are rows with one weight each; an item that
is in a bag twice is two inputs. `learn` walks a batch in one compiled kernel: find the rows, take
the statistics, add up the weights, note the score, step, count. Learning a stream in batches of one
or of a thousand gives the same rows, bit for bit.

An id in a bucket that already has the example changes nothing there, but its weight is still part
of the sum. The same forward pass answers requests (`predict`), from the present rows.

If the spec has an admission, an id without a row is learned and read in the rare row of its field
(learner.inputs.rare_rows) until it is admitted (learner.inputs.admission).
"""

from typing import Any

from headrace.ingest.features.encoder import Encoded
from headrace.learner.kernels.ftrl import constants
from headrace.learner.models.logistic_kernels import contribute, learn, predict
from headrace.learner.models.row_model import SequentialModel
from headrace.learner.spec.model_spec import ModelSpec


class LogisticRegression(SequentialModel):
    """The model of a spec. One thread learns; any number may predict from a view of its own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """`buckets`: of the store; required if the spec has an admission.

        Raises ValueError if it is missing then.
        """
        optimizer = spec.optimizer
        ftrl = constants(
            *(optimizer.alpha, optimizer.beta, optimizer.l1, optimizer.l2),
            spec.structure.first_log_odds,
        )
        super().__init__(spec, buckets, ftrl, learn, predict, contribute)

    @property
    def _paired(self) -> bool:
        return False

    def _work(self, _encoded: Encoded, _block: int) -> tuple[Any, ...]:
        return ()
