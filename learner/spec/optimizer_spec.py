"""The section `[optimizer]`: the optimizer of each group of a model's parameters.

`[optimizer]` steps the weights, one per row; `[optimizer.embeddings]` the vectors beside them;
`[optimizer.dense]` the layers of a deep model. The mathematics is in `learner.kernels.optimizers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from headrace.ingest.features.spec_sections import Variant, Variants, table_of
from headrace.ingest.features.spec_text import SpecText

if TYPE_CHECKING:
    from headrace.ingest.features.fields import FieldSet

SGD, ADAGRAD, FTRL, ADAM, COIN = "sgd", "adagrad", "ftrl", "adam", "coin"
EMBEDDINGS, DENSE = "embeddings", "dense"


class Optimizer(Struct, frozen=True):
    """One optimizer and its constants. Keys that the kind does not take keep their default."""

    name: str = FTRL
    """The kind of optimizer."""
    alpha: Annotated[float, Meta(ge=1e-6, le=1e3)] = 0.05
    """Learning rate. For `ftrl`, the rate before the first step of a coordinate, times `beta`. For
    `coin`, the initial stake of a coordinate, about 5 divided by the inputs of an example."""
    beta: Annotated[float, Meta(ge=1e-6, le=1e6)] = 1.0
    """For `ftrl`, the root of the summed squares of gradients at which the rate has halved. For
    `coin`, the bound that gradients are clipped to. The gradient of an id in one example is at most
    1; a deep model sums it per mini-batch."""
    l1: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """Sum of gradients below which a weight is exactly zero."""
    l2: Annotated[float, Meta(ge=0.0, le=1e6)] = 1.0
    """L2 regularization, which keeps weights with few examples small."""
    epsilon: Annotated[float, Meta(ge=1e-10, le=1e3)] = 1e-6
    """Added to the root of the squares. Prevents a division by zero."""
    beta1: Annotated[float, Meta(ge=0.0, le=0.9999)] = 0.9
    """Share of the mean of gradients that remains after a step."""
    beta2: Annotated[float, Meta(ge=0.0, le=0.99999)] = 0.999
    """Share of the mean of squared gradients that remains after a step."""
    decay_per_day: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.0
    """A learned value shrinks by exp(-`decay_per_day`) per day of event time."""

    def agreed(self) -> dict[str, object]:
        """Return the part of the fingerprint: the kind and the constants it uses."""
        return {"name": self.name, **{k: getattr(self, k) for k in _KINDS[self.name].takes}}


_KINDS = {
    SGD: Variant("One constant learning rate.", ("alpha", "decay_per_day")),
    ADAGRAD: Variant("A good start for layers.", ("alpha", "epsilon", "decay_per_day")),
    FTRL: Variant(
        "A good start for weights and vectors. `alpha` 0.15 and `l2` 4 to 20 suited a week of "
        "news.",
        ("alpha", "beta", "l1", "l2"),
    ),
    ADAM: Variant(
        "The most expensive in memory.", ("alpha", "beta1", "beta2", "epsilon", "decay_per_day")
    ),
    COIN: Variant(
        "For weights of ids, once `ftrl` works. It has no learning rate to tune, and was better "
        "on ids alone on that week.",
        ("alpha", "beta"),
    ),
}
WEIGHTS = Variants(Optimizer, "name", _KINDS, usual=FTRL)
GROUP = Variants(Optimizer, "name", _KINDS, usual=ADAGRAD)
"""The sections `[optimizer.embeddings]` and `[optimizer.dense]`."""


@dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizer of each group of parameters that the model has."""

    weights: Optimizer
    embeddings: Optimizer | None = None
    dense: Optimizer | None = None

    def agreed(self) -> dict[str, object]:
        """Return the part of the fingerprint; with weights alone, as it was before groups."""
        found = self.weights.agreed()
        for name, optimizer in ((EMBEDDINGS, self.embeddings), (DENSE, self.dense)):
            if optimizer is not None:
                found[name] = optimizer.agreed()
        return found


def parse_optimizers(
    tables: Mapping[str, object], groups: Sequence[str], where: SpecText
) -> Optimizers:
    """Return the optimizers of the weights and of these groups. Raises SpecError."""
    section = table_of(tables, where, "optimizer")
    weights = WEIGHTS.read(section, where, "optimizer", also=groups)
    found = {
        group: GROUP.read(table_of(section, where, "optimizer", group), where, "optimizer", group)
        for group in groups
    }
    return Optimizers(weights, found.get(EMBEDDINGS), found.get(DENSE))


def check_coin(optimizers: Optimizers, fields: FieldSet, where: SpecText) -> None:
    """Raise SpecError where coin betting would receive gradients far beyond its bound.

    It clips them. Where some gradients are large and others not, it clips more of one outcome
    than of the other: the heavy negatives of a down-sampled stream, the clicks where a number is
    large.
    """
    weights, numbers = fields.weights, fields.numbers
    if weights.declared:
        declared = "negative_rate" if weights.sampling else "weight"
        why = f"since [examples] {declared} lets examples weigh more than 1"
    elif numbers:
        why = f'since [fields.{numbers[0].name}] is a number ("log_bucket" makes ids of it)'
    else:
        return
    groups: dict[tuple[str, ...], Optimizer | None]
    groups = {(): optimizers.weights, (EMBEDDINGS,): optimizers.embeddings}
    if weights.declared:
        groups[DENSE,] = optimizers.dense
    for keys, optimizer in groups.items():
        if optimizer is not None and optimizer.name == COIN:
            wanted = f"{SGD}, {ADAGRAD}, {FTRL} or {ADAM}, {why}"
            found = f'"{COIN}", which clips gradients to its beta'
            raise where.error(("optimizer", *keys, "name"), wanted, found)


def floats(optimizer: Optimizer, coordinates: int) -> int:
    """Return how many floats of a row this many coordinates take."""
    if optimizer.name == ADAM:
        return 3 * coordinates + 1 if coordinates else 0
    return coordinates * {SGD: 1, COIN: 3}.get(optimizer.name, 2)
