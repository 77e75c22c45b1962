"""Torch modules of users: fit for a model, and unfit in many ways."""

import torch
from torch import Tensor, nn

from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape

FORM = NetworkShape(vectors=3, dimensions=4, layers=(8,), cross_layers=1, target=0)


class Summing(nn.Module):
    """Fit: all inputs of an example are summed."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.ones(form.dimensions))

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        both = batch.vectors.sum(1) + self.interest(batch)
        return batch.wide + both @ self.mix

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what items come to, (n, d)."""
        return batch.items.sum(1)


class Largest(Summing):
    """The largest of no items is nothing that torch knows."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the largest of each dimension."""
        return batch.items.max(dim=1).values


class Mean(Summing):
    """An example with fewer items than its neighbour has a mean with zeros."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the mean over the longest example's number."""
        return batch.items.sum(1) / max(1, batch.items.shape[1])


class MaskedMean(Summing):
    """Fit: it looks at what is present."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the mean over an example's own items."""
        return batch.items.sum(1) / batch.present.sum(1, keepdim=True).clamp(min=1)


class Attending(Summing):
    """No item is present: all weights are those of minus infinity."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return items weighed by a softmax over those present."""
        logits = (batch.items @ self.mix).masked_fill(~batch.present, -torch.inf)
        return (logits.softmax(1).unsqueeze(2) * batch.items).sum(1)


class Centred(Summing):
    """An example less the others of its batch."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what is to be added: minus the batch's mean."""
        return -batch.vectors.sum(1).mean(0, keepdim=True).expand(batch.wide.shape[0], -1)


class Normed(Summing):
    """No variance: one example."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.norm = nn.BatchNorm1d(form.dimensions, track_running_stats=False)

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what a batch norm without buffers makes of vectors."""
        normed: Tensor = self.norm(batch.vectors.sum(1))
        return normed


class Random(Summing):
    """Two answers to one question."""

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return noise."""
        return torch.rand(batch.wide.shape[0], FORM.dimensions)


class Hidden(Centred):
    """The dependence on the batch goes through a layer that starts with zeros."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.gate = nn.Parameter(torch.zeros(form.dimensions))

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return nothing, to begin with."""
        return super().interest(batch) * self.gate


class Double(Summing):
    """Float32 inside, float64 at the end."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds in another type than is learned from."""
        return super().forward(batch).double()


class Remembering(Summing):
    """Fit: it keeps its last answer for inspection."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        self.seen = super().forward(batch)
        return self.seen


class Listed(Summing):
    """Its layers are in a list that torch does not look into."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.layers = [nn.Linear(form.dimensions, form.dimensions)]

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return the output of an untrained layer."""
        made: Tensor = self.layers[0](batch.vectors.sum(1))
        return made


class ListedConstant(Listed):
    """It begins alike wherever it is made, and stays there."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        for each in self.layers[0].parameters():
            nn.init.constant_(each, 0.5)


class Projecting(Summing):
    """Every process projects in a direction of its own."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.direction = torch.randn(form.dimensions)

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return vectors, projected."""
        return batch.vectors.sum(1) * self.direction


class ProjectingLate(Projecting):
    """The direction is seen once a parameter that begins with zero moves."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        nn.init.zeros_(self.mix)


class Seeded(Summing):
    """Fit: what it draws is the same everywhere."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        dice = torch.Generator().manual_seed(3)
        self.direction = torch.randn(form.dimensions, generator=dice)

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return vectors, projected."""
        return batch.vectors.sum(1) * self.direction


class Another(Summing):
    """As deep as dice say."""

    made = 0

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        Another.made += 1
        self.more = nn.Parameter(torch.zeros(Another.made))


class Deep(nn.Module):
    """Fit: a network that ignores the sum of weights."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()
        wide = form.vectors * form.dimensions
        self.layers = nn.Sequential(nn.Linear(wide, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        made: Tensor = self.layers(batch.vectors.flatten(1)).squeeze(1)
        return made


class NeverNegative(Deep):
    """Fit, if odd: it never says less than one half."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds of zero or more."""
        return super().forward(batch).relu()


class Bounded(Deep):
    """Fit: it never says that it is sure."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds from -1 to 1."""
        return super().forward(batch).tanh()


class NoParameters(nn.Module):
    """Fit: embeddings are all it has."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        return batch.wide + batch.vectors.sum((1, 2))


class Probable(Summing):
    """The sigmoid is taken twice: here, and of what is returned."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return probabilities."""
        return super().forward(batch).sigmoid()


class DeepProbable(Deep):
    """So it is here, where the sum of weights is ignored."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return probabilities."""
        return super().forward(batch).sigmoid()


class OneOfTwo(Summing):
    """A probability, without the word."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return the click's share of two classes."""
        log_odds = super().forward(batch)
        return torch.stack((torch.zeros_like(log_odds), log_odds), dim=1).softmax(1)[:, 1]


class Shut(Summing):
    """Never copied: who answers needs a module a thread."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.twice = self.mix * 2.0


class Unbegun(nn.Module):
    """Its constructor forgets that of nn.Module."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        pass

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        return batch.wide


class Buffered(Summing):
    """Keeps something where no server would find it."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.register_buffer("mean", torch.zeros(1))


class Precise(Summing):
    """Parameters of twice the precision."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.double()


class Dropping(Summing):
    """Forgets some of it."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__(form)
        self.drop = nn.Dropout(0.5)


class Column(Summing):
    """Answers with a column."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n, 1)."""
        return super().forward(batch).unsqueeze(1)


class Detached(Summing):
    """Cuts the way back."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds without a gradient."""
        return super().forward(batch).detach()
