"""Factorization machine: a weight and a vector a row, all pairs of inputs, example by example.

    y = w0 + sum_i w_i x_i + sum_{i < j} <v_i, v_j> x_i x_j        (Rendle 2010, eq. 1)

The inputs are those of every model (learner.inputs.example_inputs): ids, numbers, items of bags,
statistics. A vector's value is what it began with (learner.kernels.initialization) plus what it
gained. As with logistic regression, learning a stream in batches of any size gives the same rows,
bit for bit; without dimensions it *is* logistic regression, with whichever optimizer the weights
have.

An input that an example has twice (an item of a bag) is two inputs, in pairs as well, and its row
is stepped twice. What is predicted from a rare row gives the gradient; what is stepped is the row
that the input counts in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.learner.kernels import parameters_of
from headrace.learner.models.factorization_machine_kernels import (
    FactorizationScratch,
    learn,
    predict,
)
from headrace.learner.models.row_model import SequentialModel

if TYPE_CHECKING:
    from headrace.ingest.features import Encoded
    from headrace.learner.spec import ModelSpec


class FactorizationMachine(SequentialModel):
    """The model of a spec. One thread learns; any number may predict from a view of their own."""

    def __init__(self, spec: ModelSpec, buckets: int = 0) -> None:
        """Only a spec with admission has to know how many `buckets` its store has.

        Raises ValueError if it is not told.
        """
        machine = parameters_of(spec)
        self._dimensions = machine.vectors.coordinates
        super().__init__(spec, buckets, machine, learn, predict)

    def _work(self, encoded: Encoded) -> tuple[Any, ...]:
        inputs, dimensions = self._inputs.most_inputs(encoded), self._dimensions
        work = FactorizationScratch(
            np.empty((inputs, dimensions), np.float32),
            np.empty(dimensions, np.float32),
            np.empty(dimensions, np.float32),
        )
        return (work,)
