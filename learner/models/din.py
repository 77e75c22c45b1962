"""DIN: Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018.

A user's recent items come as a bag of the event. What of them matters depends on what is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from learner.models.network import hidden_layers

if TYPE_CHECKING:
    from learner.models.network import Batch, Form

_ATTENTION_WIDTH = 36
"""Of the activation unit, as in the paper's figure 2."""


class DeepInterestNetwork(nn.Module):
    """The activation unit weighs each item by the candidate; a network takes the weighted sum.

    Weights are not normalized (section 4.3): how much there is of an interest tells, too. ReLU
    stands for PReLU and Dice, whose statistics of batches have no place in a stream.
    """

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.target, dimensions = form.target, form.dimensions
        self.attention = nn.Sequential(
            nn.Linear(4 * dimensions, _ATTENTION_WIDTH), nn.ReLU(), nn.Linear(_ATTENTION_WIDTH, 1)
        )
        self.deep = hidden_layers((form.vectors + 1) * dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, (n,)."""
        shown = batch.vectors[:, self.target : self.target + 1].expand_as(batch.items)
        pairs = torch.cat((batch.items, shown, batch.items - shown, batch.items * shown), dim=2)
        weights = self.attention(pairs).squeeze(2) * batch.present
        interest = (weights.unsqueeze(2) * batch.items).sum(dim=1)  # eq. 3
        everything = torch.cat((batch.vectors.flatten(1), interest), dim=1)
        log_odds: Tensor = batch.wide + self.last(self.deep(everything)).squeeze(1)
        return log_odds
