"""Turns gathered inputs into the tensors of a `NetworkBatch`, and gradients back into arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.learner.inputs.preparation import InputPreparation
from headrace.learner.models.deep.kernels import GatheredInputs, InputGradients
from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape
from headrace.learner.spec.model_spec import ModelSpec


class BatchParts(NamedTuple):
    """The gathered inputs of n examples with K fixed inputs each, as tensors."""

    wide: Tensor  # (n,) sum of the weights, items' too
    vectors: Tensor  # (n, K - 1, d)
    item_vectors: Tensor  # (items, d)

    def to(self, device: torch.device) -> BatchParts:
        """Return the parts on this device; a part that is there already is not copied."""
        return BatchParts(*(each.to(device) for each in self))


class BatchTensors:
    """Maps positions to the tensors of a `NetworkBatch`."""

    def __init__(self, spec: ModelSpec, inputs: InputPreparation) -> None:
        fields, structure = spec.fields, spec.structure
        self._each, self._bags = inputs.fixed_count + inputs.statistic_count, inputs.bag_count
        self._history, target = -1, -1
        if structure.history:
            self._history = [each.name for each in fields.bags].index(structure.history)
            target = [each.name for each in fields.singles].index(structure.target)
        self.form = NetworkShape(
            self._each - 1 + self._bags,
            structure.dimensions,
            structure.layers,
            structure.cross_layers,
            target,
        )

    def parts(
        self, gathered: GatheredInputs, offsets: npt.NDArray[np.int64], count: int
    ) -> BatchParts:
        """Return tensors over what was gathered of `count` examples.

        offsets: (count * bags + 1,) of the items of their bags, from 0. Cut and summed by numpy:
        cut by torch, each would have a gradient as long as all of them.
        """
        weights, vectors = gathered.weights, gathered.vectors
        fixed = count * self._each
        wide = weights[:fixed].reshape(count, self._each).sum(axis=1)
        if self._bags:
            wide += np.bincount(self._of_items(offsets), weights[fixed:], count)
        return BatchParts(
            torch.from_numpy(wide),
            torch.from_numpy(vectors[: fixed - count].reshape(count, -1, vectors.shape[1])),
            torch.from_numpy(vectors[fixed - count :]),
        )

    def gradients(self, by_parts: BatchParts, offsets: npt.NDArray[np.int64]) -> InputGradients:
        """Return gradients by gathered inputs: a weight has the gradient of the sum it is in."""
        wide, vectors, item_vectors = (each.contiguous().numpy() for each in by_parts)
        of_items = wide[self._of_items(offsets)] if self._bags else wide[:0]
        return InputGradients(
            np.repeat(wide, self._each),
            vectors.reshape(-1, vectors.shape[2]),
            of_items,
            item_vectors,
        )

    def by_parts(
        self, by_wide: Tensor, by_vectors: Tensor, offsets: npt.NDArray[np.int64]
    ) -> BatchParts:
        """Return gradients by the parts for those by a batch that was made of them.

        by_vectors: (count, vectors, d).
        """
        if not self._bags:
            return BatchParts(by_wide, by_vectors, by_vectors.new_zeros(0, by_vectors.shape[2]))
        fixed = by_vectors.shape[1] - self._bags
        by_bags = by_vectors[:, fixed:].reshape(-1, by_vectors.shape[2])
        return BatchParts(by_wide, by_vectors[:, :fixed], by_bags[_of_bags(offsets)])

    def _of_items(self, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the example of each item."""
        begins = offsets[:: self._bags]
        return np.repeat(np.arange(begins.shape[0] - 1), np.diff(begins))

    def batch(self, parts: BatchParts, offsets: npt.NDArray[np.int64], count: int) -> NetworkBatch:
        """Return the batch of `count` examples; offsets: of the items of their bags, from 0."""
        vectors, device = parts.vectors, parts.vectors.device
        dimensions = vectors.shape[2]
        items = vectors.new_zeros(count, 0, dimensions)
        present = torch.zeros(count, 0, dtype=torch.bool, device=device)
        if self._bags:
            lengths = np.diff(offsets)
            bag = _of_bags(offsets).to(device)
            sums = vectors.new_zeros(count * self._bags, dimensions)
            sums = sums.index_add(0, bag, parts.item_vectors)
            vectors = torch.cat((vectors, sums.view(count, self._bags, dimensions)), dim=1)
        if self._history >= 0:
            begins = offsets[:-1][self._history :: self._bags]
            lengths = lengths[self._history :: self._bags]
            steps = np.arange(lengths.max(initial=0))
            there = steps < lengths[:, None]
            places = np.where(there, begins[:, None] + steps, 0)
            present = torch.from_numpy(there).to(device)
            if places.size:
                items = parts.item_vectors[torch.from_numpy(places).to(device)] * present.unsqueeze(
                    2
                )
        return NetworkBatch(parts.wide, vectors, items, present)


def _of_bags(offsets: npt.NDArray[np.int64]) -> Tensor:
    """Return the bag of each item, of all bags of all examples."""
    return torch.from_numpy(np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets)))
