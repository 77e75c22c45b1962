"""Torch modules of users: fit for a model, and unfit in many ways."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headrace.learner.models.deep.networks.contract import NetworkBatch, NetworkShape

FORM = NetworkShape(vectors=3, dimensions=4, layers=(8,), cross_layers=1, target=0)


class Summing(nn.Module):
    """Fit: all inputs of an example are summed."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.ones(form.dimensions))
        self.begin(form)

    def begin(self, form: NetworkShape) -> None:
        """Make what a derived class has besides."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        both = batch.vectors.sum(1) + self.interest(batch)
        return batch.wide + both @ self.mix

    def interest(self, batch: NetworkBatch) -> Tensor:
        """Return what items come to, (n, d)."""
        return batch.items.sum(1)


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


class NoParameters(nn.Module):
    """Fit: embeddings are all it has."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        super().__init__()

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        return batch.wide + batch.vectors.sum((1, 2))


class Remembering(Summing):
    """Fit: it keeps its last answer for inspection."""

    def forward(self, batch: NetworkBatch) -> Tensor:
        """Return log-odds, (n,)."""
        self.seen = super().forward(batch)
        return self.seen


class Unbegun(nn.Module):
    """Its constructor forgets that of nn.Module."""

    def __init__(self, form: NetworkShape = FORM) -> None:
        pass


def _answering(base: type[nn.Module], change: Callable[[Tensor], Tensor]) -> type[nn.Module]:
    """Return a module that changes the log-odds of another."""

    def forward(self: Any, batch: NetworkBatch) -> Tensor:
        return change(base.forward(self, batch))

    return type("Answering", (base,), {"forward": forward})


def _summing(
    interest: Callable[[Any, NetworkBatch], Tensor] = Summing.interest,
    begin: Callable[[Any, NetworkShape], object] = Summing.begin,
) -> type[nn.Module]:
    """Return a Summing module with another interest, and with what `begin` adds to it."""
    return type("Own", (Summing,), {"interest": interest, "begin": begin})


def _masked_mean(_: Any, batch: NetworkBatch) -> Tensor:
    return batch.items.sum(1) / batch.present.sum(1, keepdim=True).clamp(min=1)


def _attended(self: Any, batch: NetworkBatch) -> Tensor:
    """Weigh items by a softmax over those present: of no item, all weights are NaN."""
    logits = (batch.items @ self.mix).masked_fill(~batch.present, -torch.inf)
    made: Tensor = (logits.softmax(1).unsqueeze(2) * batch.items).sum(1)
    return made


def _centred(_: Any, batch: NetworkBatch) -> Tensor:
    return -batch.vectors.sum(1).mean(0, keepdim=True).expand(batch.wide.shape[0], -1)


def _projected(self: Any, batch: NetworkBatch) -> Tensor:
    made: Tensor = batch.vectors.sum(1) * self.direction
    return made


def _direction(self: Any, form: NetworkShape, dice: torch.Generator | None = None) -> None:
    self.direction = torch.randn(form.dimensions, generator=dice)


def _late_direction(self: Any, form: NetworkShape) -> None:
    """Hide the direction until a parameter that begins with zero moves."""
    _direction(self, form)
    nn.init.zeros_(self.mix)


def _listed(self: Any, form: NetworkShape) -> None:
    """Put a layer into a list that torch does not look into."""
    self.layers = [nn.Linear(form.dimensions, form.dimensions)]


_instances = iter(range(1, 1000))

FIT: dict[str, type[nn.Module]] = {
    "summing": Summing,
    "remembering": Remembering,
    "deep": Deep,
    "no parameters": NoParameters,
    "mean of the present items": _summing(_masked_mean),
    "projected in a seeded direction": _summing(
        _projected, lambda self, form: _direction(self, form, torch.Generator().manual_seed(3))
    ),
    "never negative": _answering(Deep, torch.relu),
    "bounded": _answering(Deep, torch.tanh),
}

UNFIT: dict[str, tuple[type[nn.Module], str]] = {
    "the largest of no items": (
        _summing(lambda _, batch: batch.items.max(dim=1).values),
        "called with a Batch of 2 examples, up to 0 items each",
    ),
    "a mean with the padding": (
        _summing(lambda _, batch: batch.items.sum(1) / max(1, batch.items.shape[1])),
        "alone and in a batch",
    ),
    "a softmax of no items": (
        _summing(_attended),
        "finite log-odds of a Batch of 3 examples, up to 2 items each",
    ),
    "less the others of the batch": (_summing(_centred), "alone and in a batch"),
    "the same behind a gate of zeros": (
        _summing(
            lambda self, batch: _centred(self, batch) * self.gate,
            lambda self, form: setattr(self, "gate", nn.Parameter(torch.zeros(form.dimensions))),
        ),
        "alone and in a batch",
    ),
    "a batch norm of one example": (
        _summing(
            lambda self, batch: self.norm(batch.vectors.sum(1)),
            lambda self, form: setattr(
                self, "norm", nn.BatchNorm1d(form.dimensions, track_running_stats=False)
            ),
        ),
        "Batch of 1 example,",
    ),
    "layers in a list": (
        _summing(lambda self, batch: self.layers[0](batch.vectors.sum(1)), _listed),
        "nn.ModuleList), got a tensor of shape (4, 4)",
    ),
    "a random direction behind zeros": (
        _summing(_projected, _late_direction),
        "the same log-odds from every instance",
    ),
    "other parameters in each instance": (
        _summing(
            begin=lambda self, _: setattr(self, "more", nn.Parameter(torch.zeros(next(_instances))))
        ),
        "parameters of the same names and shapes",
    ),
    "a tensor that is no leaf": (
        _summing(begin=lambda self, _: setattr(self, "twice", self.mix * 2.0)),
        "copy.deepcopy copies",
    ),
    "a buffer": (
        _summing(begin=lambda self, _: self.register_buffer("mean", torch.zeros(1))),
        "no buffers",
    ),
    "float64 parameters": (
        _summing(begin=lambda self, _: self.double()),
        "parameters of torch.float32",
    ),
    "dropout": (
        _summing(begin=lambda self, _: setattr(self, "drop", nn.Dropout(0.5))),
        "no dropout",
    ),
    "no constructor of nn.Module": (Unbegun, "calls super().__init__()"),
    "float64 log-odds": (
        _answering(Summing, Tensor.double),
        "expected log-odds of torch.float32, got torch.float64",
    ),
    "probabilities": (_answering(Summing, torch.sigmoid), "answers from 0 to 1 alone"),
    "probabilities without weights": (_answering(Deep, torch.sigmoid), "answers from 0 to 1 alone"),
    "a column": (_answering(Summing, lambda x: x.unsqueeze(1)), "log-odds of shape (3,)"),
    "no gradient": (_answering(Summing, Tensor.detach), "have a gradient"),
}
