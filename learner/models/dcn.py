"""DCN-V2: Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale
Learning to Rank Systems", WWW 2021. The stacked form, with full matrices. As in all models here the
sum of weights is added to the log-odds: it holds the intercept, and learns what is seen rarely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from learner.models.network import hidden_layers

if TYPE_CHECKING:
    from learner.models.network import Batch, Form


class DCNv2(nn.Module):
    """Cross layers, then a network on top of them (figure 1a)."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        width = form.vectors * form.dimensions
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(form.cross_layers))
        self.deep = hidden_layers(width, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        x0 = x = batch.vectors.flatten(1)
        for layer in self.cross:
            x = x0 * layer(x) + x  # eq. 1
        log_odds: Tensor = batch.wide + self.last(self.deep(x)).squeeze(1)
        return log_odds
