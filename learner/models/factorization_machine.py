"""Factorization machine: a weight and a vector for each row, and all pairs of inputs.

    y = w0 + sum_i w_i x_i + sum_{i < j} <v_i, v_j> x_i x_j        (Rendle 2010, eq. 1)

The inputs are those of every model (learner.inputs.example_inputs): ids, numbers, items of bags,
statistics. A vector's value is its initial value (learner.kernels.initialization) plus its deltas.
As with logistic regression, learning a stream in batches of any size gives the same rows, bit for
bit. Without dimensions it *is* logistic regression, with any optimizer.

An input that an example has twice (an item of a bag) is two inputs, also in pairs, and its row is
stepped twice. The gradient is taken at the prediction, which may read a rare row; the row that is
stepped is the one in which the input counts.
"""

from typing import Any

import numpy as np

from headrace.ingest.features.encoder import Encoded
from headrace.learner.kernels.row_values import parameters_of
from headrace.learner.models.factorization_machine_kernels import (
    FactorizationScratch,
    contribute,
    learn,
    predict,
)
from headrace.learner.models.row_model import SequentialModel
from headrace.learner.spec.model_spec import ModelSpec


class FactorizationMachine(SequentialModel):
    """The model of a spec. One thread learns; any number may predict from a view of its own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """`buckets`: of the store; required if the spec has an admission.

        Raises ValueError if it is missing then.
        """
        machine = parameters_of(spec)
        self._dimensions = machine.vectors.coordinates
        super().__init__(spec, buckets, machine, learn, predict, contribute)

    @property
    def _paired(self) -> bool:
        return self._dimensions > 0

    def _work(self, encoded: Encoded, block: int) -> tuple[Any, ...]:
        inputs, dimensions = self._inputs.most_inputs(encoded), self._dimensions
        work = FactorizationScratch(
            np.empty((block, inputs, dimensions), np.float32),
            np.empty((block, inputs), np.float32),
            np.empty((block, dimensions), np.float32),
            np.empty(dimensions, np.float32),
            np.zeros((inputs, dimensions), np.float32),
            np.full(inputs, -1, np.int64),
        )
        return (work,)
