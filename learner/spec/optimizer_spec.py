"""The optimizers of a spec: which one steps which group of a model's parameters, and how.

`[optimizer]` is of the weights, one a row; `[optimizer.embeddings]` of the vectors beside them,
`[optimizer.dense]` of the layers of a deep model. What the mathematics is stands in
`learner.kernels.optimizers`; here is what may be written, and what goes into the fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ingest.features import one_of
from headrace.learner.spec import optimizer_spec as spec
from headrace.learner.spec.tables import only, real, shown, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.ingest.features import FieldSet, SpecText
    from headrace.learner.spec.tables import Table

SGD, ADAGRAD, FTRL, ADAM, COIN = "sgd", "adagrad", "ftrl", "adam", "coin"
EMBEDDINGS, DENSE = "embeddings", "dense"

_KEYS = {
    SGD: ("alpha", "decay_per_day"),
    ADAGRAD: ("alpha", "epsilon", "decay_per_day"),
    FTRL: ("alpha", "beta", "l1", "l2"),
    ADAM: ("alpha", "beta1", "beta2", "epsilon", "decay_per_day"),
    COIN: ("alpha", "beta"),
}
_BOUNDS = {
    "alpha": (1e-6, 1e3),
    "beta": (1e-6, 1e6),
    "l1": (0.0, 1e6),
    "l2": (0.0, 1e6),
    "epsilon": (1e-10, 1e3),
    "beta1": (0.0, 0.9999),
    "beta2": (0.0, 0.99999),
    "decay_per_day": (0.0, 1e3),
}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One optimizer and its constants. What the kind does not use keeps its default."""

    name: str = FTRL
    alpha: float = 0.05
    """Learning rate; of FTRL, of a coordinate that was never stepped, times beta. coin: what a
    coordinate has to bet with at first, some 5 divided by the inputs of an example."""
    beta: float = 1.0
    """ftrl: gradient (root of the summed squares) at which the rate has halved. coin: gradients
    are cut to it, either way; of an id in one example they are never larger than 1, of a
    mini-batch of a deep model they are summed."""
    l1: float = 0.0
    """ftrl: sum of gradients below which a weight is exactly zero."""
    l2: float = 1.0
    """ftrl: pull to zero; with few examples a weight stays small."""
    epsilon: float = 1e-6
    """adagrad, adam: added to the root of the squares, so that nothing is divided by zero."""
    beta1: float = 0.9
    """adam: what one step leaves of the mean of gradients."""
    beta2: float = 0.999
    """adam: what one step leaves of the mean of squares."""
    decay_per_day: float = 0.0
    """sgd, adagrad, adam: what was gained shrinks by exp(-decay) in a day of event time."""

    def agreed(self) -> dict[str, object]:
        """Return what has to agree between processes: the kind and the constants it uses."""
        return {"name": self.name, **{key: getattr(self, key) for key in _KEYS[self.name]}}


@dataclass(frozen=True, slots=True)
class Optimizers:
    """Of each group of parameters that the model has."""

    weights: Optimizer
    embeddings: Optimizer | None = None
    dense: Optimizer | None = None

    def agreed(self) -> dict[str, object]:
        """Return what has to agree: of weights alone, what it was before there were groups."""
        found = self.weights.agreed()
        for name, optimizer in ((EMBEDDINGS, self.embeddings), (DENSE, self.dense)):
            if optimizer is not None:
                found[name] = optimizer.agreed()
        return found


def parse_optimizers(table: Table, groups: Sequence[str], where: SpecText) -> Optimizers:
    """Return what the section says of the weights and of these groups. Raises SpecError."""
    weights = _optimizer(table, FTRL, groups, where, "optimizer")
    found = {
        group: _optimizer(
            table_of(table, where, "optimizer", group), ADAGRAD, (), where, "optimizer", group
        )
        for group in groups
    }
    return Optimizers(weights, found.get(EMBEDDINGS), found.get(DENSE))


def check_coin(optimizers: Optimizers, fields: FieldSet, where: SpecText) -> None:
    """Raise SpecError where coin betting would be given gradients far beyond its bound.

    It cuts them, and where some are large and others not, more of one outcome than of the other:
    the heavy negatives of a down-sampled stream, the clicks where a number is large.
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
            expected = f"{SGD}, {ADAGRAD}, {FTRL} or {ADAM}, {why}"
            found = f'"{COIN}", which cuts gradients to its beta'
            raise where.error(("optimizer", *keys, "name"), expected, found)


def _optimizer(
    table: Table, default: str, groups: Sequence[str], where: SpecText, *keys: str
) -> Optimizer:
    name = table.get("name", default)
    if not isinstance(name, str) or name not in _KEYS:
        raise where.error((*keys, "name"), f"name {one_of(_KEYS, str(name))}", shown(name))
    only(table, ("name", *_KEYS[name], *groups), where, *keys)
    usual = Optimizer(name)
    constants = {
        key: real(table, where, keys, key, getattr(usual, key), _BOUNDS[key]) for key in _KEYS[name]
    }
    return Optimizer(name, **constants)


def floats(optimizer: Optimizer, coordinates: int) -> int:
    """Return how many floats of a row so many coordinates take."""
    if optimizer.name == spec.ADAM:
        return 3 * coordinates + 1 if coordinates else 0
    return coordinates * {spec.SGD: 1, spec.COIN: 3}.get(optimizer.name, 2)
