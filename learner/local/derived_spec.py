"""Derives a model spec from a table: one field per column, by the type of the column."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from headrace.learner.spec.architecture import LOGISTIC_REGRESSION
from headrace.learner.spec.model_spec import ModelSpec, parse_spec

TIME = "timestamp_ms"
"""The column with the time of a row."""
_UNSUITABLE = re.compile(r"[^a-z0-9_]+")


class SpecOptions(NamedTuple):
    """The parts of a spec that no column determines. None: the default of the spec."""

    architecture: str
    crosses: Sequence[Sequence[str]]
    """Columns whose combinations of values are fields of their own."""
    numbers: Sequence[str] | None
    """Columns to weigh by their value; None: those with floats."""
    optimizer: str
    alpha: float | None
    l2: float | None
    dimensions: int | None
    seed: int | None


def derive_spec(types: Mapping[str, pa.DataType], options: SpecOptions) -> ModelSpec:
    """Return the spec of a table with these columns, in their order.

    Floats are numbers, lists are bags, everything else is an id. `timestamp_ms`, the time of a row,
    is the hour of the day: its values are nearly unique. Raises ValueError for a cross or a number
    that names no column; SpecError for an option that the spec refuses.
    """
    for name in (*(options.numbers or ()), *(part for cross in options.crosses for part in cross)):
        if name not in types:
            raise ValueError(f"expected names of columns, one of {sorted(types)}, got {name!r}")
    names = _field_names(types)
    lines = ["[model]", 'name = "table"', f"architecture = {json.dumps(options.architecture)}"]
    drawn = options.architecture != LOGISTIC_REGRESSION
    lines += _given(dimensions=options.dimensions, seed=options.seed if drawn else None)
    for number, (column, kind) in enumerate(types.items(), start=1):
        transform = _transform(column, kind, options.numbers)
        lines += _field(names[column], number, transform)
        if transform != "hour":
            lines += [f"source = {json.dumps(column)}"]
        if transform == "number":
            lines += ["log1p = true"]  # no scale is known, and a large number would be a large step
    for number, cross in enumerate(options.crosses, start=len(types) + 1):
        parts = [names[part] for part in cross]
        lines += _field("_x_".join(parts), number, "cross")
        lines += [f"of = {json.dumps(parts)}"]
    lines += ["[optimizer]", f"name = {json.dumps(options.optimizer)}"]
    lines += _given(alpha=options.alpha, l2=options.l2)
    return parse_spec("\n".join(lines) + "\n", "the spec of this table")


def _field(name: str, number: int, transform: str) -> list[str]:
    return [f"[fields.{name}]", f"number = {number}", f'transform = "{transform}"']


def _given(**options: float | None) -> list[str]:
    return [f"{name} = {value}" for name, value in options.items() if value is not None]


def _transform(column: str, kind: pa.DataType, numbers: Sequence[str] | None) -> str:
    if column == TIME and column not in (numbers or ()):
        return "hour"
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return "bag"
    number = pt.is_floating(kind) if numbers is None else column in numbers
    return "number" if number else "id"


def _field_names(types: Mapping[str, pa.DataType]) -> dict[str, str]:
    """Return a unique name of a-z, 0-9 and _ for each column."""
    names: dict[str, str] = {}
    for column in types:
        stem = _UNSUITABLE.sub("_", column.lower()).strip("_") or "column"
        name, copy = stem, 2
        while name in names.values():
            name, copy = f"{stem}_{copy}", copy + 1
        names[column] = name
    return names
