"""Field-weighted factorization machine: Pan et al., "Field-weighted Factorization Machines for
Click-Through Rate Prediction in Display Advertising", WWW 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from learner.models.network import Batch, Form


class FieldWeightedFM(nn.Module):
    """y = wide + sum_{i < j} <v_i, v_j> r_ij (eq. 4): one weight a pair of fields.

    Here r_ij is 1 plus what the layer holds, so that the model begins as a factorization machine.
    """

    def __init__(self, form: Form) -> None:
        super().__init__()
        first, second = torch.triu_indices(form.vectors, form.vectors, offset=1)
        self.places = (first * form.vectors + second,)
        self.strength = nn.Parameter(torch.zeros(len(first)))

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        vectors = batch.vectors.shape[1]
        strengths = batch.vectors.new_zeros(vectors * vectors)
        strengths = strengths.index_put(self.places, 1.0 + self.strength).view(vectors, vectors)
        # a coordinate of all fields is a row: one product of matrices sums over i for every j
        rows = batch.vectors.transpose(1, 2).contiguous()
        return batch.wide + ((rows @ strengths) * rows).flatten(1).sum(dim=1)
