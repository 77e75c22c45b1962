"""The network over the order of a user's recent items: `architecture = "sequence"`.

DIN weighs recent items by the candidate and ignores their order. Here an encoder reads the items
from the oldest to the latest and returns one state, the user's interest now. The state and its
product with the candidate's vector (the `target`) are inputs of the network, beside all vectors.

`gru`: Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR 2016,
eqs. 1 to 4. The gates are torch's, with a bias inside and outside the reset product.

`attention`: SASRec, Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018,
eqs. 1 to 6 and section 3.2, with one head. Positions are counted from the latest item, so that a
longer history does not move the others. There is no dropout: an example is learned once.

The papers train on whole sequences and rank all items. Here the loss is the one of all models, for
the shown candidate, so that the encoder learns from each example once, in the order of the stream.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape, hidden_layers
from headrace.learner.spec.architecture import ATTENTION, Structure


class RecurrentEncoder(nn.Module):
    """GRU layers; the state after the latest item."""

    def __init__(self, dimensions: int, layers: int) -> None:
        super().__init__()
        self.gru = nn.GRU(dimensions, dimensions, layers, batch_first=True)

    def forward(self, items: Tensor) -> Tensor:
        """Return the state after each item, (n, longest, d), of items (n, longest, d)."""
        states: Tensor = self.gru(items)[0]
        return states


class AttentionBlock(nn.Module):
    """Causal self-attention, then a network at each position; both x + g(LayerNorm(x))."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(dimensions)
        self.projections = nn.Linear(dimensions, 3 * dimensions, bias=False)
        self.before_network = nn.LayerNorm(dimensions)
        self.network = nn.Sequential(
            nn.Linear(dimensions, dimensions), nn.ReLU(), nn.Linear(dimensions, dimensions)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, longest, d) of (n, longest, d)."""
        query, key, value = self.projections(self.before_attention(x)).chunk(3, dim=2)
        x = x + scaled_dot_product_attention(query, key, value, is_causal=True)  # eqs. 2 to 4
        x = x + self.network(self.before_network(x))  # eq. 6
        return x


class AttentionEncoder(nn.Module):
    """Blocks of causal self-attention over items with their positions."""

    def __init__(self, dimensions: int, layers: int, longest: int) -> None:
        super().__init__()
        # drawn, so that initial values come from the seed (learner.models.deep.layers)
        self.positions = nn.Parameter(torch.randn(longest, dimensions))
        self.blocks = nn.ModuleList(AttentionBlock(dimensions) for _ in range(layers))

    def forward(self, items: Tensor, ages: Tensor) -> Tensor:
        """Return the state after each item, (n, longest, d).

        ages: (n, longest) how many items of the same example are later.
        """
        x = items + self.positions[ages]  # eq. 1
        for block in self.blocks:
            x = block(x)
        return x


class SequenceNetwork(nn.Module):
    """A network over all vectors, the encoder's state, and its product with the candidate."""

    def __init__(self, form: NetworkShape, structure: Structure) -> None:
        super().__init__()
        dimensions, layers = form.dimensions, structure.encoder_layers
        self.target, self.longest = form.target, structure.history_length
        self.encoder: AttentionEncoder | RecurrentEncoder
        if structure.encoder == ATTENTION:
            self.encoder = AttentionEncoder(dimensions, layers, self.longest)
        else:
            self.encoder = RecurrentEncoder(dimensions, layers)
        self.deep = hidden_layers((form.vectors + 2) * dimensions, form.layers)
        self.last = nn.Linear(form.layers[-1], 1)

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        state = self._state(batch)
        shown = batch.vectors[:, self.target]
        everything = torch.cat((batch.vectors.flatten(1), state, state * shown), dim=1)
        log_odds: Tensor = batch.wide + self.last(self.deep(everything)).squeeze(1)
        return log_odds

    def _state(self, batch: NetworkBatch) -> Tensor:
        """Return the state after the latest item, (n, d); zero if an example has no items."""
        items, counts = latest(batch, self.longest)
        if not items.numel():
            return items.new_zeros(items.shape[0], items.shape[2])
        if isinstance(self.encoder, AttentionEncoder):
            ages = (
                counts.unsqueeze(1) - 1 - torch.arange(items.shape[1], device=items.device)
            ).clamp(min=0)
            states = self.encoder(items, ages)
        else:
            states = self.encoder(items)
        # items behind the latest are padding. No encoder looks ahead, so they change no state
        ends = (counts - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        state: Tensor = states.gather(1, ends).squeeze(1) * (counts > 0).unsqueeze(1)
        return state


def latest(batch: NetworkBatch, most: int) -> tuple[Tensor, Tensor]:
    """Return the latest items of each example and their number.

    Returns items (n, longest, d), the oldest first, then padding, and counts (n,). `longest` is
    the largest of the counts, at most `most`.
    """
    present = batch.present
    counts = present.sum(dim=1)
    kept = counts.clamp(max=most)
    longest = int(kept.max()) if kept.numel() else 0
    # stable: present items first, in their order
    order = torch.argsort((~present).to(torch.uint8), dim=1, stable=True)
    places = (counts - kept).unsqueeze(1) + torch.arange(longest, device=present.device)
    order = order.gather(1, places.clamp(max=max(present.shape[1] - 1, 0)))
    items = batch.items.gather(1, order.unsqueeze(2).expand(-1, -1, batch.items.shape[2]))
    return items, kept
