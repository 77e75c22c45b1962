"""Layers as rows: the parameters of a network, cut into chunks that are rows like any other.

So pushes, replicas, marks and snapshots work for them unchanged. All parameters, in the module's
order, are cut into chunks of as many coordinates as fit into a row of the model's width, together
with the state of their optimizer. A chunk's id is a function of its
number, spread over the buckets; its field number is reserved.

The initial value of a layer, as of an embedding, is a function that is the same everywhere. Values
that a module's constructor sets stay (a norm's ones). Values that it draws, which differ between
two instances, are replaced: a matrix is drawn uniformly within sqrt(6 / (fan in + fan out)) (Glorot
and Bengio, AISTATS 2010), from a hash of seed and place, not by torch; a vector (the bias
of a linear layer) is zero.

A chunk counts an example as the intercept does.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headrace.learner.kernels.optimizers import group_of
from headrace.learner.kernels.pending_deltas import PendingColumns
from headrace.learner.models.deep.layer_kernels import begin_layers, read_layers, step_layers
from headrace.learner.models.sync_group import MiniBatchEvidence
from headrace.learner.spec.model_spec import ModelSpec
from headrace.learner.spec.optimizer_spec import Optimizer, floats
from headrace.pserver.rows.table import RowTable

Floats = npt.NDArray[np.float32]


class LayerState(NamedTuple):
    """The rows of all layers at one moment."""

    shrinks: Floats  # (chunks,) the share of their gains that decay left
    places: npt.NDArray[np.int64]  # (chunks,) of their rows in the view, -1 if missing


class Layers:
    """The parameters of one module in rows."""

    def __init__(self, spec: ModelSpec, module: nn.Module, again: nn.Module) -> None:
        """again: another instance of the module, with other random numbers."""
        optimizer = spec.optimizers.dense or Optimizer()
        coordinates = 1
        while floats(optimizer, coordinates + 1) <= spec.width:
            coordinates += 1
        self._group = group_of(optimizer, 0, coordinates)
        self._shapes = [tuple(each.shape) for each in module.parameters()]
        begun, bounds = _begins(module, again)
        chunks = -(-begun.shape[0] // coordinates)
        padded = [np.zeros((chunks, coordinates), np.float32) for _ in range(2)]
        for whole, each in zip(padded, (begun, bounds), strict=True):
            whole.reshape(-1)[: each.shape[0]] = each
        self.ids = np.zeros(chunks, np.uint64)
        self._begun = padded[0]
        begin_layers(np.uint64(spec.structure.seed), padded[1], self.ids, self._begun)
        self.count = begun.shape[0]
        self.decays = self._group.decay_per_s > 0.0
        """Whether they change with time, even if no row does."""

    def __len__(self) -> int:
        return int(self.ids.shape[0])

    def buffers(self) -> tuple[Floats, list[Tensor]]:
        """Return room for values or gradients, (chunks, coordinates), and the same room cut to the
        shapes of the module's parameters, in their order.
        """
        # memory is allocated when first written: a model that only predicts has no gradients
        whole, cut, begin = np.zeros(self._begun.shape, np.float32), [], 0
        for shape in self._shapes:
            end = begin + math.prod(shape)
            # cut by numpy: cut by torch, each would have a gradient as long as all of them
            cut.append(torch.from_numpy(whole.reshape(-1)[begin:end].reshape(shape)))
            begin = end
        return whole, cut

    def read(self, view: RowTable, now_s: int, values: Floats) -> LayerState:
        """Write the layers of the present rows to `values`, decayed to this second."""
        shrinks, places = np.empty(len(self), np.float32), np.empty(len(self), np.int64)
        read_layers(
            view.columns,
            self._group,
            self.ids,
            self._begun,
            np.uint32(now_s),
            places,
            shrinks,
            values,
        )
        return LayerState(shrinks, places)

    def admits(self, begin: int, end: int, evidence: Callable[[], MiniBatchEvidence]) -> bool:  # noqa: ARG002
        """Return whether examples [begin, end) of a batch may be stepped: one learner steps all."""
        return True

    def step(
        self,
        view: RowTable,
        gaining: PendingColumns,
        active: npt.NDArray[np.bool_],
        layer_state: LayerState,
        gradient: Floats,
        counted: tuple[int, int, int],
    ) -> None:
        """Step all chunks whose bucket is active.

        gradient: (chunks, coordinates), zero behind the last parameter. counted: shows and clicks
        of the mini-batch, and the second of its last event.
        """
        shows, clicks, second = counted
        step_layers(
            view.columns,
            gaining,
            active,
            self._group,
            self.ids,
            layer_state.places,
            layer_state.shrinks,
            gradient,
            shows,
            clicks,
            np.uint32(second),
        )


def _begins(module: nn.Module, again: nn.Module) -> tuple[Floats, Floats]:
    """Return constants and bounds of the initial value of every coordinate, each (N,)."""
    begun, bounds = [np.zeros(0, np.float32)], [np.zeros(0, np.float32)]
    for parameter, other in zip(module.parameters(), again.parameters(), strict=True):
        constant, bound = np.zeros(parameter.numel(), np.float32), 0.0
        if torch.equal(parameter, other):
            constant = parameter.detach().numpy().reshape(-1)
        elif parameter.dim() > 1:
            fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(parameter)  # noqa: SLF001
            bound = math.sqrt(6.0 / (fan_in + fan_out))
        begun.append(constant)
        bounds.append(np.full(parameter.numel(), bound, np.float32))
    return np.concatenate(begun), np.concatenate(bounds)
