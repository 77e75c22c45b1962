"""The model spec as a whole: what joiner, learners, parameter server and servers must agree on.

One TOML file. `ingest.features.fields` reads what makes an example (`[fields.*]`, `[label]`,
`[examples]`), `learner.spec.architecture` what model it is (`[model]`),
`learner.spec.optimizer_spec` how it is stepped (`[optimizer]`), `learner.spec.growth` how far it
may grow (`[admission]`, `[expiry]`), `learner.calibration.platt` what becomes of its answers
(`[calibration]`), this file `[statistics.*]` and the whole. The fingerprint is of what was read,
not of the text, so a comment may change and a default may be written out. Whatever is not known is
refused, naming the line: a misspelt key would else be a default in silence.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.ingest.features import (
    LAST_NUMBER,
    NAME,
    FieldSet,
    SpecError,
    SpecText,
    one_of,
    parse_fields,
)
from headrace.learner.spec.architecture import (
    Structure,
    check_history,
    check_synchronous,
    parse_model,
)
from headrace.learner.spec.calibration_spec import Calibration, parse_calibration
from headrace.learner.spec.growth import Admission, parse_admission, parse_expiry
from headrace.learner.spec.optimizer_spec import (
    Optimizer,
    Optimizers,
    check_coin,
    floats,
    parse_optimizers,
)
from headrace.learner.spec.statistics_spec import (
    KINDS,
    CrossRead,
    StatisticRead,
    StatisticsProgram,
    program,
)
from headrace.learner.spec.tables import only, real, shown, table_of
from headrace.pserver.keeper import Expiry

if TYPE_CHECKING:
    from headrace.learner.spec.tables import Table

__all__ = ["ModelSpec", "Optimizer", "SpecError", "Statistic", "load_spec", "parse_spec"]

_SECTIONS = (
    *("model", "label", "examples", "fields", "statistics", "optimizer"),
    *("admission", "expiry", "calibration"),
)


@dataclass(frozen=True, slots=True)
class Statistic:
    """One statistic: read from the rows of a field, or crossed from others."""

    name: str
    number: int
    kind: str = ""
    """show, click, rate or age; empty for a cross."""
    of: str = ""
    """The single-valued field whose row is read; empty for a cross."""
    prior_clicks: float = 0.9
    """Clicks of a row never shown: with `prior_shows`, the rate it is taken to have."""
    prior_shows: float = 10.0
    """Shows that weigh as much as what was seen."""
    per_doubling: float = 1.0
    """Logarithmic buckets for each doubling of the value."""
    cross: tuple[str, ...] = ()
    """Names of statistics that are read and of single-valued fields."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model: its name, what it reads, how it learns."""

    name: str
    structure: Structure
    fields: FieldSet
    statistics: tuple[Statistic, ...]
    """In ascending order of number."""
    optimizers: Optimizers
    admission: Admission | None
    """None: every id gets a row when it is first seen."""
    expiry: Expiry
    """For keepers. Without a section: nothing is ever deleted."""
    calibration: Calibration | None
    """None: what the model says is the answer."""
    fingerprint: str
    """Of all that has to agree: the parameter server keeps it, and who has another is refused."""
    text: str
    """The file as it was written."""

    @property
    def width(self) -> int:
        """Floats a row."""
        width = floats(self.optimizers.weights, 1)
        if self.optimizers.embeddings is not None:
            width += floats(self.optimizers.embeddings, self.structure.dimensions)
        if self.optimizers.dense is not None:  # a row of layers holds one coordinate at least
            width = max(width, floats(self.optimizers.dense, 1))
        return width

    @property
    def architecture(self) -> str:
        """Name of the architecture."""
        return self.structure.architecture

    @property
    def optimizer(self) -> Optimizer:
        """What steps the weights."""
        return self.optimizers.weights

    @property
    def program(self) -> StatisticsProgram:
        """The statistics, as kernels take them."""
        column = {each.name: i for i, each in enumerate(self.fields.singles)}
        read = [each for each in self.statistics if each.kind]
        level = {each.name: i for i, each in enumerate(read)}
        readings = [
            StatisticRead(
                KINDS[each.kind],
                column[each.of],
                each.prior_clicks,
                each.prior_shows,
                each.per_doubling,
            )
            for each in read
        ]
        crossings = [
            CrossRead(
                each.number,
                tuple(
                    level[part] if part in level else -1 - column[part]
                    for part in (each.cross or (each.name,))
                ),
            )
            for each in self.statistics
        ]
        return program(readings, crossings)


def load_spec(path: Path | str) -> ModelSpec:
    """Read a spec from a file. Raises SpecError, also where there is no such file."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: expected a model spec in TOML, found: {error}") from error
    return parse_spec(text, path)


def parse_spec(text: str, path: Path | str) -> ModelSpec:
    """Return the spec of a text; `path` is named in errors.

    Raises SpecError naming file and line, what was expected and what was found.
    """
    where = SpecText(path, text)
    tables = where.tables()
    only(tables, _SECTIONS, where)
    name, structure = parse_model(table_of(tables, where, "model"), where)
    fields = parse_fields(tables, where)
    check_history(structure, fields, where)
    statistics = _statistics(table_of(tables, where, "statistics"), fields, where)
    if statistics and fields.weights.sampling:
        expected = "no negative_rate beside [statistics.*]: rows count the examples that are kept"
        found = f"negative_rate {fields.weights.negative_rate:g}, which would bend every rate"
        raise where.error(("examples", "negative_rate"), expected, found)
    section = table_of(tables, where, "optimizer")
    optimizers = parse_optimizers(section, structure.groups, where)
    check_coin(optimizers, fields, where)
    check_synchronous(structure, optimizers.dense, where)
    agreed: dict[str, object] = {
        "model": {"name": name, "architecture": structure.architecture} | structure.agreed(),
        "fields": fields.fingerprint,
        "statistics": [asdict(each) for each in statistics],
        "optimizer": optimizers.agreed(),
    }
    # only where they are declared: a model without them keeps the fingerprint that it had before
    # there were such sections
    admission, expiry = None, Expiry()
    if "admission" in tables:
        admission = parse_admission(table_of(tables, where, "admission"), fields, where)
        agreed["admission"] = asdict(admission)
    if "expiry" in tables:
        window_ms = fields.label.window_ms
        expiry = parse_expiry(table_of(tables, where, "expiry"), window_ms, where)
        agreed["expiry"] = {"after_s": expiry.after_s, "most_rows": expiry.most_rows}
    calibration = None
    if "calibration" in tables:
        calibration = parse_calibration(table_of(tables, where, "calibration"), where)
        agreed["calibration"] = asdict(calibration)
    canonical = json.dumps(agreed, sort_keys=True, separators=(",", ":"))
    return ModelSpec(
        name=name,
        structure=structure,
        fields=fields,
        statistics=statistics,
        optimizers=optimizers,
        admission=admission,
        expiry=expiry,
        calibration=calibration,
        fingerprint=hashlib.sha256(canonical.encode()).hexdigest()[:16],
        text=text,
    )


def _statistics(named: Table, fields: FieldSet, where: SpecText) -> tuple[Statistic, ...]:
    found = [_statistic(table_of(named, where, "statistics", name), name, where) for name in named]
    all_fields = (*fields.singles, *fields.bags, *fields.numbers)
    owner = {each.number: each.name for each in all_fields}
    singles = [each.name for each in fields.singles]
    read = [each.name for each in found if each.kind]
    for each in found:
        keys = ("statistics", each.name)
        if any(each.name == field.name for field in all_fields):
            raise where.error(keys, "a name that no field has", f'"{each.name}"')
        if each.number in owner:
            raise where.error(
                (*keys, "number"),
                "a number that no other field or statistic has",
                f'{each.number}, the number of "{owner[each.number]}"',
            )
        owner[each.number] = each.name
        if each.kind and each.of not in singles:
            expected = f"of naming a single-valued field, {one_of(singles, each.of)}"
            raise where.error((*keys, "of"), expected, f'"{each.of}"')
        for part in each.cross:
            if part not in singles and part not in read:
                expected = (
                    f"cross of single-valued fields and statistics, {one_of(singles + read, part)}"
                )
                raise where.error((*keys, "cross"), expected, f'"{part}"')
        if each.cross and not any(part in read for part in each.cross):
            raise where.error(
                (*keys, "cross"),
                f"cross with at least one statistic, {one_of(read, each.cross[0])}",
                f"fields alone: {json.dumps(each.cross)}",
            )
    return tuple(sorted(found, key=lambda each: each.number))


def _statistic(table: Table, name: str, where: SpecText) -> Statistic:
    keys = ("statistics", name)
    if not NAME.fullmatch(name):
        raise where.error(keys, "a statistic's name of a-z, 0-9 and _", f'"{name}"')
    number = table.get("number")
    if type(number) is not int or not 1 <= number <= LAST_NUMBER:
        raise where.error((*keys, "number"), f"number from 1 to {LAST_NUMBER}", shown(number))
    if "cross" in table:
        only(table, ("number", "cross"), where, *keys)
        return Statistic(name, number, cross=_crossed(table["cross"], where, name))
    kind = table.get("statistic")
    if not isinstance(kind, str) or kind not in KINDS:
        expected = f"statistic {one_of(KINDS, str(kind))} (or cross)"
        raise where.error((*keys, "statistic"), expected, shown(kind))
    known = ["number", "statistic", "of", "per_doubling"]
    if kind == "rate":
        known += ["prior_clicks", "prior_shows"]
    only(table, known, where, *keys)
    of = table.get("of")
    if not isinstance(of, str):
        raise where.error((*keys, "of"), "of naming a single-valued field", shown(of))
    default = Statistic(name, number)
    return Statistic(
        name,
        number,
        kind,
        of,
        real(table, where, keys, "prior_clicks", default.prior_clicks, (1e-6, 1e9)),
        real(table, where, keys, "prior_shows", default.prior_shows, (1e-6, 1e9)),
        real(table, where, keys, "per_doubling", default.per_doubling, (0.01, 1000.0)),
    )


def _crossed(found: object, where: SpecText, name: str) -> tuple[str, ...]:
    names = found if isinstance(found, list) else []
    if len(names) < 2 or not all(isinstance(each, str) for each in names):
        expected = "cross listing two or more names of statistics and fields"
        raise where.error(("statistics", name, "cross"), expected, shown(found))
    return tuple(names)
