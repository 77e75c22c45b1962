"""Wide & Deep: Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016.

The wide part is the weights of all inputs, crossed fields among them: the spec declares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from learner.models.network import hidden_layers

if TYPE_CHECKING:
    from learner.models.network import Batch, Form


class WideAndDeep(nn.Module):
    """P(Y = 1 | x) = sigmoid(w_wide [x, phi(x)] + w_deep a + b) (eq. 3)."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.deep = hidden_layers(form.vectors * form.dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        log_odds: Tensor = batch.wide + self.last(self.deep(batch.vectors.flatten(1))).squeeze(1)
        return log_odds
