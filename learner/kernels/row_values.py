"""The value of a row to a model: its weight, and the vector beside it. Compiled."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.features.fields import MEAN
from headrace.learner.intrinsics.simd import LANES, eight, put
from headrace.learner.kernels.initialization import bound_of, initial, origin
from headrace.learner.kernels.optimizers import ParameterGroup, gained_at, group_of
from headrace.learner.kernels.row_ids import rare_id
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.spec.optimizer_spec import Optimizer, floats
from headrace.pserver.intrinsics.row_view import row_of
from headrace.runtime.kernels.numba_kernels import inlined, read_only

_NUMBER = np.uint64(1023)
_ZERO = np.float32(0.0)
NOT_LEARNED, MEAN_OF_LEARNED, SQRT_OF_LEARNED = range(3)
"""Norms of the learned weights of a bag's items."""


class RowParameters(NamedTuple):
    """The places of weight and vector in a row, and the range of initial vectors."""

    weights: ParameterGroup
    vectors: ParameterGroup
    seed: np.uint64
    bound: float
    """Vectors begin uniformly within it."""
    offset: float
    """Log-odds of an example before anything is learned."""
    items: ParameterGroup
    """Importance of an item in its bag; no coordinate if no bag learns it."""
    poolings: npt.NDArray[np.int64]
    """(bags,) one of the three constants above, or (0,) if no bag learns the weights of items."""


def parameters_of(spec: ModelSpec) -> RowParameters:
    """Return the parameters of a spec's rows."""
    weights, structure = spec.optimizers.weights, spec.structure
    embeddings = spec.optimizers.embeddings or Optimizer()
    bags, learned = spec.fields.bags, spec.fields.learns_item_weights
    poolings = [
        (MEAN_OF_LEARNED if each.pooling == MEAN else SQRT_OF_LEARNED)
        if each.learned_weights
        else NOT_LEARNED
        for each in bags
    ]
    return RowParameters(
        group_of(weights, 0, 1),
        group_of(embeddings, floats(weights, 1), structure.dimensions),
        np.uint64(structure.seed),
        bound_of(structure.init_scale),
        structure.first_log_odds,
        # it does not decay: kernels read it as it is in the row
        group_of(weights, spec.input_floats - floats(weights, 1), 1)._replace(decay_per_s=0.0)
        if learned
        else group_of(weights, 0, 0),
        read_only(np.array(poolings if learned else (), np.int64), np.int64),
    )


@inlined
def read_id(columns, gate, place, row_id):  # type: ignore[no-untyped-def]
    """Return the id of the row that is read for an input: the rare row if it has none. Compiled."""
    if place >= 0:
        return columns.ids[place]
    if gate.on and gate.guarded[row_id & _NUMBER]:
        return rare_id(row_id, gate.high)
    return row_id


@inlined
def value_at(row, there, parameters, begun, shrink, at):  # type: ignore[no-untyped-def]
    """Return coordinates of the vector of a row: their initial value plus their deltas.

    row: (width,), if it is `there`. begun: its origin. shrink: what decay left of what it gained.
    at: which coordinates (learner.intrinsics.simd). Compiled.
    """
    value = initial(begun, at, parameters.bound)
    if there:
        value = gained_at(row, parameters.vectors, shrink, at) + value
    return value


@inlined
def read_vector(values, parameters, place, row_id, shrink, vector):  # type: ignore[no-untyped-def]
    """Write the vector of a row, which may not exist (`place` -1), to `vector`. Compiled.

    shrink: what decay left of what it gained.
    """
    row, there = row_of(values, max(place, 0)), place >= 0
    begun, count = origin(row_id, parameters.seed), parameters.vectors.coordinates
    whole = count - count % LANES
    for f in range(0, whole, LANES):
        at = eight(f)
        put(vector, 0, at, value_at(row, there, parameters, begun, shrink, at))
    for f in range(whole, count):
        put(vector, 0, f, value_at(row, there, parameters, begun, shrink, f))


@inlined
def read_weight(values, parameters, place, shrink):  # type: ignore[no-untyped-def]
    """Return the weight of a row, 0 if it is missing. Compiled."""
    if place < 0:
        return _ZERO
    return gained_at(row_of(values, place), parameters.weights, shrink, 0)
