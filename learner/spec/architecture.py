"""Which model a spec declares, and what of its form has to agree: the section `[model]`.

Each architecture has keys of its own; one that means nothing to it is refused. What is learned lies
in rows of one width: a weight, a vector beside it where the architecture has one, and what their
optimizers need (learner.kernels.optimizers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ingest.features import one_of
from headrace.learner.spec.optimizer_spec import ADAGRAD, DENSE, EMBEDDINGS, SGD
from headrace.learner.spec.tables import only, real, shown, whole

if TYPE_CHECKING:
    from headrace.ingest.features import FieldSet, SpecText
    from headrace.learner.spec.optimizer_spec import Optimizer
    from headrace.learner.spec.tables import Table

LOGISTIC_REGRESSION = "logistic_regression"
FACTORIZATION_MACHINE = "factorization_machine"
FIELD_WEIGHTED_FM = "field_weighted_fm"
WIDE_AND_DEEP = "wide_and_deep"
DEEPFM = "deepfm"
DCN_V2 = "dcn_v2"
DIN = "din"
MODULE = "module"
DEEP = (FIELD_WEIGHTED_FM, WIDE_AND_DEEP, DEEPFM, DCN_V2, DIN, MODULE)
"""Those that are torch modules."""

_MODEL_NAME = re.compile(r"[a-z0-9_-]+")
_VECTOR_KEYS = ("dimensions", "init_scale", "seed")
_STREAM_KEYS = (*_VECTOR_KEYS, "mini_batch", "synchronous")
_DEEP_KEYS = (*_STREAM_KEYS, "layers")
_KEYS: dict[str, tuple[str, ...]] = {
    LOGISTIC_REGRESSION: (),
    FACTORIZATION_MACHINE: _VECTOR_KEYS,
    FIELD_WEIGHTED_FM: _STREAM_KEYS,
    WIDE_AND_DEEP: _DEEP_KEYS,
    DEEPFM: _DEEP_KEYS,
    DCN_V2: (*_DEEP_KEYS, "cross_layers"),
    DIN: (*_DEEP_KEYS, "history", "target"),
    MODULE: (*_DEEP_KEYS, "cross_layers", "history", "target", "module"),
}
"""What may be written of each, beside name and architecture."""
_NAMING = {
    "history": "history naming a bag field of the event",
    "target": "target naming a single-valued field",
    "module": "module, a name like package.file:Class",
}
"""What is expected of the keys that name something."""
FREE_TO_DIFFER = ("mini_batch", "synchronous")
"""Of these what says how rows are learned and not what they mean: a copy may do it otherwise."""


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

    mini_batch: int = 128
    """Examples after which the rows of a deep model are stepped, at most."""
    synchronous: bool = False
    """Whether learners step the layers of a deep model together
    (learner.models.deep.synchronous_layers)."""
    layers: tuple[int, ...] = (64, 32)
    """Widths of hidden layers."""
    cross_layers: int = 2
    """dcn_v2: layers of the cross network."""
    history: str = ""
    """din, module: the bag that holds a user's recent items."""
    target: str = ""
    """din, module: the single-valued field whose value they are compared with."""
    module: str = ""
    """module: `package.file:Class` of a torch module that can be imported."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of parameters beside the weights, each with an optimizer of its own."""
        if self.architecture in DEEP:
            return (EMBEDDINGS, DENSE)
        return (EMBEDDINGS,) if self.dimensions else ()

    def agreed(self) -> dict[str, object]:
        """Return what has to agree beside the architecture's name."""
        found = {key: getattr(self, key) for key in _KEYS[self.architecture]}
        # only where it is so: a model without it keeps the fingerprint it had before there was such
        return {key: value for key, value in found.items() if key != "synchronous" or value}


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
    history = _text(table, "history", where, architecture == DIN)
    return Structure(
        architecture,
        whole(table, where, keys, "dimensions", 16, (1, 256)),
        real(table, where, keys, "init_scale", usual.init_scale, (0.0, 10.0)),
        whole(table, where, keys, "seed", usual.seed, (0, 2**63 - 1)),
        whole(table, where, keys, "mini_batch", usual.mini_batch, (1, 65_536)),
        _switch(table, "synchronous", where),
        _layers(table.get("layers", list(usual.layers)), where),
        whole(table, where, keys, "cross_layers", usual.cross_layers, (1, 16)),
        history,
        _text(table, "target", where, bool(history)),
        _text(table, "module", where, architecture == MODULE),
    )


def _switch(table: Table, key: str, where: SpecText) -> bool:
    found = table.get(key, False)
    if not isinstance(found, bool):
        raise where.error(("model", key), f"{key}, true or false", shown(found))
    return found


def _layers(found: object, where: SpecText) -> tuple[int, ...]:
    widths = found if isinstance(found, list) else []
    if not widths or not all(type(each) is int and 1 <= each <= 65_536 for each in widths):
        expected = "layers listing widths of hidden layers, each from 1 to 65536"
        raise where.error(("model", "layers"), expected, shown(found))
    return tuple(widths)


def _text(table: Table, key: str, where: SpecText, needed: bool) -> str:
    found = table.get(key, None if needed else "")
    if not isinstance(found, str):
        raise where.error(("model", key), _NAMING[key], shown(found))
    return found


def check_synchronous(structure: Structure, dense: Optimizer | None, where: SpecText) -> None:
    """Raise SpecError unless a step of layers splits into shares, if it is to (models.joint)."""
    if not structure.synchronous or dense is None:
        return
    if dense.name not in (SGD, ADAGRAD):
        expected = f"{SGD} or {ADAGRAD}, since [model] synchronous = true"
        raise where.error(("optimizer", DENSE, "name"), expected, f'"{dense.name}"')
    if dense.decay_per_day:
        expected = "no decay_per_day, since [model] synchronous = true"
        raise where.error(("optimizer", DENSE, "decay_per_day"), expected, f"{dense.decay_per_day}")


def check_history(structure: Structure, fields: FieldSet, where: SpecText) -> None:
    """Raise SpecError unless history and target name fields of their kinds, if they name any.

    din has to name both. A target without a history would be compared with nothing.
    """
    if not structure.history and structure.architecture != DIN:
        if structure.target:
            expected = "no target, since there is no history, a bag field of the event, beside it"
            raise where.error(("model", "target"), expected, shown(structure.target))
        return
    bags, singles = ([each.name for each in some] for some in (fields.bags, fields.singles))
    for key, known in (("history", bags), ("target", singles)):
        name = getattr(structure, key)
        if name not in known:
            there = one_of(known, name) if known else "of which the spec has none"
            raise where.error(("model", key), f"{_NAMING[key]}, {there}", shown(name))


DENSE_NUMBER = 1001
"""Field number of the rows that hold layers."""
