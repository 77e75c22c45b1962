"""Two towers: a network for the reader, one for the article, and how well they match."""

from torch import Tensor, nn

from headrace.learner.models.deep import NetworkBatch, NetworkShape, hidden_layers

USER, ARTICLE = 0, 1
"""Places of the fields `user` and `article` in `towers.toml`: fields come by ascending number."""


class TwoTowers(nn.Module):
    """Log-odds: the sum of all weights, and the product of what both towers make."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.reader = hidden_layers(shape.dimensions, shape.layers)
        self.shown = hidden_layers(shape.dimensions, shape.layers)

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        reader = self.reader(batch.vectors[:, USER])  # (n, last of layers)
        shown = self.shown(batch.vectors[:, ARTICLE])
        return batch.wide + (reader * shown).sum(1)
