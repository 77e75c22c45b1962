"""Which model a spec declares, and what of its form has to agree: the section `[model]`.

Each architecture has keys of its own; one that means nothing to it is refused. What is learned lies
in rows of one width: a weight, a vector beside it where the architecture has one, and what their
optimizers need (learner.optimizers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingest.spec_text import one_of
from learner.optimizer_spec import EMBEDDINGS
from learner.spec_tables import only, real, shown, whole

if TYPE_CHECKING:
    from ingest.spec_text import SpecText
    from learner.spec_tables import Table

LOGISTIC_REGRESSION = "logistic_regression"
FACTORIZATION_MACHINE = "factorization_machine"

_MODEL_NAME = re.compile(r"[a-z0-9_-]+")
_VECTOR_KEYS = ("dimensions", "init_scale", "seed")
_KEYS: dict[str, tuple[str, ...]] = {
    LOGISTIC_REGRESSION: (),
    FACTORIZATION_MACHINE: _VECTOR_KEYS,
}
"""What may be written of each, beside name and architecture."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The form of a model. What the architecture does not use keeps its default."""

    architecture: str = LOGISTIC_REGRESSION
    dimensions: int = 0
    """Floats of the vector beside each weight."""
    init_scale: float = 0.01
    """Standard deviation of what vectors begin with: not zero, or nothing would ever move them."""
    seed: int = 1
    """Of what vectors and layers begin with: a function of it and the row's id, never stored."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of parameters beside the weights, each with an optimizer of its own."""
        return (EMBEDDINGS,) if self.dimensions else ()

    def agreed(self) -> dict[str, object]:
        """Return what has to agree beside the architecture's name."""
        return {key: getattr(self, key) for key in _KEYS[self.architecture]}


def parse_model(table: Table, where: SpecText) -> tuple[str, Structure]:
    """Return the model's name and its structure. Raises SpecError."""
    architecture = table.get("architecture", LOGISTIC_REGRESSION)
    if not isinstance(architecture, str) or architecture not in _KEYS:
        expected = f"architecture {one_of(_KEYS, str(architecture))}"
        raise where.error(("model", "architecture"), expected, shown(architecture))
    only(table, ("name", "architecture", *_KEYS[architecture]), where, "model")
    name = table.get("name")
    if not isinstance(name, str) or not _MODEL_NAME.fullmatch(name):
        raise where.error(("model", "name"), "name of a-z, 0-9, _ and -", shown(name))
    return name, _structure(table, architecture, where)


def _structure(table: Table, architecture: str, where: SpecText) -> Structure:
    if not _KEYS[architecture]:
        return Structure(architecture)
    keys, usual = ("model",), Structure()
    return Structure(
        architecture,
        whole(table, where, keys, "dimensions", 16, (1, 256)),
        real(table, where, keys, "init_scale", usual.init_scale, (0.0, 10.0)),
        whole(table, where, keys, "seed", usual.seed, (0, 2**63 - 1)),
    )
