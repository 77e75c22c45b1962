"""Spaces over the keys of a spec, and specs with some keys changed.

A space is a table in the shape of a spec. Where the spec has a value, the space has its choices:

    [space]
    optimizer.alpha = { log = [0.01, 1.0] }         # log-uniform
    optimizer.l2 = { range = [0.0, 10.0] }          # uniform
    model.dimensions = { list = [4, 8], if = { "model.architecture" = "factorization_machine" } }
    model.architecture = ["logistic_regression", "factorization_machine"]
    fields.user_item = ["on", "off"]                # keep or remove a field or a section

A condition names another key of the space, and its value or values at which this key exists. Keys
are drawn in their order, but a key with a condition after the key that the condition names.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.ingest.features.spec_text import SpecError, SpecText

if TYPE_CHECKING:
    import numpy as np


Settings = Mapping[str, object]
"""Key of a spec, with dots -> its value."""

ON, OFF = "on", "off"
_KINDS = ("log", "range", "list")
_CONDITION = "if"


class SpaceKey(NamedTuple):
    """One key of a spec, and its choices."""

    name: str
    kind: str
    """log, range or list."""
    values: tuple[Any, ...]
    """Lower and upper bound, or the list."""
    condition: tuple[str, tuple[object, ...]] | None = None
    """Another key, and the values of it at which this one exists."""

    def exists(self, settings: Settings) -> bool:
        """Say whether the key exists beside these settings."""
        if self.condition is None:
            return True
        name, values = self.condition
        return settings.get(name) in values

    def at(self, share: float) -> object:
        """Return the value at a share of the space, 0 to 1."""
        if self.kind == "list":
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        low, high = self.values
        if self.kind == "log":
            return float(f"{math.exp(math.log(low) + share * math.log(high / low)):.4g}")
        return float(f"{low + share * (high - low):.4g}")


def read_space(table: Mapping[str, object], where: SpecText) -> tuple[SpaceKey, ...]:
    """Return the keys of a space, those with a condition last. Raises SpecError."""
    found = _keys(table, (), where)
    names = {key.name for key in found}
    for key in found:
        if key.condition is not None and key.condition[0] not in names:
            wanted = f"a condition on another key of the space, one of {', '.join(sorted(names))}"
            raise where.error(("space", *key.name.split(".")), wanted, f'"{key.condition[0]}"')
    return tuple(sorted(found, key=lambda key: key.condition is not None))


def _keys(table: Mapping[str, object], path: tuple[str, ...], where: SpecText) -> list[SpaceKey]:
    found: list[SpaceKey] = []
    for name, value in table.items():
        here = (*path, *name.split("."))
        if isinstance(value, list):
            found.append(_key(here, "list", value, None, where))
        elif isinstance(value, dict) and any(kind in value for kind in _KINDS):
            [kind, *more] = [each for each in value if each != _CONDITION]
            if more or kind not in _KINDS:
                wanted = "one of log, range and list, and perhaps if"
                raise where.error(("space", *here), wanted, ", ".join(value))
            found.append(_key(here, kind, value[kind], value.get(_CONDITION), where))
        elif isinstance(value, dict):
            found += _keys(value, here, where)
        else:
            wanted = "choices: a list, { log = [LOW, HIGH] }, { range = [LOW, HIGH] }"
            raise where.error(("space", *here), wanted, json.dumps(value, default=str))
    return found


def _key(
    path: tuple[str, ...], kind: str, values: object, condition: object, where: SpecText
) -> SpaceKey:
    good = isinstance(values, list) and bool(values)
    if good and kind != "list":
        assert isinstance(values, list)
        numbers = [value for value in values if isinstance(value, int | float)]
        good = len(values) == len(numbers) == 2 and numbers[0] < numbers[1]
        good = good and (kind != "log" or numbers[0] > 0)
    if not good:
        wanted = "values" if kind == "list" else "two numbers, the lower one first"
        positive = ", above 0" if kind == "log" else ""
        raise where.error(("space", *path), wanted + positive, json.dumps(values, default=str))
    assert isinstance(values, list)
    depends: tuple[str, tuple[object, ...]] | None = None
    if condition is not None:
        if not isinstance(condition, dict) or len(condition) != 1:
            wanted = 'if = { "ANOTHER.KEY" = VALUE }'
            raise where.error(("space", *path), wanted, json.dumps(condition, default=str))
        [(name, value)] = condition.items()
        depends = name, tuple(value) if isinstance(value, list) else (value,)
    return SpaceKey(".".join(path), kind, tuple(values), depends)


def random_settings(space: Sequence[SpaceKey], dice: np.random.Generator) -> dict[str, object]:
    """Return one setting of each key that exists."""
    settings: dict[str, object] = {}
    for key in space:
        share = float(dice.random())  # drawn for absent keys too: later keys keep their draw
        if key.exists(settings):
            settings[key.name] = key.at(share)
    return settings


def changed_spec(text: str, settings: Settings, name: str) -> str:
    """Return the text of a spec with these keys set and a name of its own.

    Raises SpecError for a key inside a value that is no table, or a section to keep that is absent.
    """
    tables = tomllib.loads(text)
    for key, value in {**settings, "model.name": name}.items():
        *path, last = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SpecError(f"{key}: expected a section {part!r} in the spec, got a value")
        if isinstance(table.get(last), dict) or (value in (ON, OFF) and len(path) == 1):
            if last not in table or value not in (ON, OFF):
                raise SpecError(f"{key}: expected a section of the spec, on or off, got {value!r}")
            if value == OFF:
                del table[last]
        else:
            table[last] = value
    return _toml(tables)


def _toml(tables: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return tables as TOML: values first, then the tables within."""
    values = [f"{name} = {_value(value)}" for name, value in tables.items()
              if not isinstance(value, dict)]  # fmt: skip
    lines = [f"[{'.'.join(path)}]", *values, ""] if path and (values or not tables) else values
    for name, value in tables.items():
        if isinstance(value, dict):
            lines.append(_toml(value, (*path, name)))
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value) if isinstance(value, str | bool | int | float) else str(value)
