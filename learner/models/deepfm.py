"""DeepFM: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
IJCAI 2017. The machine and the network share their embeddings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from learner.models.network import hidden_layers
from learner.models.pairs import sum_of_pairs

if TYPE_CHECKING:
    from learner.models.network import Batch, Form


class DeepFM(nn.Module):
    """y = y_FM + y_DNN (eq. 1)."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.deep = hidden_layers(form.vectors * form.dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        pairs, flat = sum_of_pairs(batch.vectors)  # eq. 2
        deep = self.last(self.deep(flat)).squeeze(1)  # eqs. 3 and 4
        log_odds: Tensor = batch.wide + pairs + deep
        return log_odds
