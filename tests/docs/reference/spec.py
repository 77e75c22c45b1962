"""Lists the sections and keys of a model spec, from the structs that parse it."""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.inspect import (
    BoolType,
    EnumType,
    FloatType,
    IntType,
    Metadata,
    UnionType,
    VarTupleType,
)

from headrace.ingest.features.fields import FIELDS, ExampleOptions, LabelPolicy
from headrace.ingest.features.spec_sections import Variants, bounds_of
from headrace.ingest.features.spec_text import one_of
from headrace.learner.spec.admission_and_expiry import ADMISSION, ExpirySection
from headrace.learner.spec.architecture import MODEL
from headrace.learner.spec.calibration_spec import CALIBRATION
from headrace.learner.spec.model_spec import SECTIONS
from headrace.learner.spec.optimizer_spec import GROUP, WEIGHTS
from headrace.learner.spec.schema import attribute_docstrings
from headrace.learner.spec.statistics_spec import STATISTIC, CrossedStatistic

HEAD = """# Model spec

A model spec is a TOML file with these sections. Only `[model]` and one field are required.
[Declaring a model](../guides/models.md) explains how to use them. `headrace spec FILE` checks
a spec.

`headrace spec --schema` prints a JSON Schema, with which editors complete and check specs. For Even
Better TOML or taplo, write it to a file and begin the spec with a line that names it:

```toml
#:schema ./headrace-spec.schema.json
```

An error names the file, the line, the key, the text in the column "expected", and the value
found.
"""
_PARSERS: dict[str, Any] = {
    "model": MODEL,
    "fields": FIELDS,
    "label": LabelPolicy,
    "examples": ExampleOptions,
    "statistics": STATISTIC,
    "optimizer": WEIGHTS,
    "admission": ADMISSION,
    "expiry": ExpirySection,
    "calibration": CALIBRATION,
}
_KEYS = "\n| key | type | default | expected | |\n|---|---|---|---|---|\n"
_GROUPS = {"embeddings": "vectors", "dense": "layers"}
"""Tables of [optimizer] -> the parameters that they are about."""


def page() -> str:
    """Return the page of keys."""
    parts = [HEAD]
    for name, meaning in SECTIONS.items():
        parser = _PARSERS[name]
        heading = f"{name}.NAME" if name in ("fields", "statistics") else name
        parts.append(f"\n## `[{heading}]`\n\n{meaning}\n{_KEYS}")
        if isinstance(parser, Variants):
            tags = {parser.tag: one_of(parser.kinds, "")}
            parts += _rows(parser.section, _defaults(parser), tags, _of_kinds(parser))
            parts += _more_rows(name)
            parts += _kinds(parser)
        else:
            parts += _rows(parser)
    return "".join(parts)


def _more_rows(section: str) -> Iterator[str]:
    """Keys that the section's own struct does not have."""
    if section == "statistics":
        yield from _rows(CrossedStatistic, {"cross": "required for a cross", "number": None})
    if section == "optimizer":
        for name, parameters in _GROUPS.items():
            default = f'`{{ {GROUP.tag} = "{GROUP.usual}" }}`'
            meaning = f"The optimizer of the {parameters}, in a model that has them: the same keys."
            yield f"| `{name}` | table | {default} | | {meaning} |\n"


def _defaults(kinds: Variants[Any]) -> dict[str, str | None]:
    """The cell of each key that kinds take; None for attributes that are no keys."""
    found: dict[str, str | None] = dict.fromkeys(kinds.section.__struct_encode_fields__)
    found |= dict.fromkeys(kinds.always, "required")
    own = {each.encode_name: each.default for each in msgspec.structs.fields(kinds.section)}
    for key in {key for kind in kinds.kinds.values() for key in (*kind.takes, *kind.needs)}:
        needing = [name for name, kind in kinds.kinds.items() if key in kind.needs]
        taking = sorted(name for name, kind in kinds.kinds.items() if key in kind.takes)
        literals = {name: kinds.kinds[name].defaults.get(key, own[key]) for name in taking}
        if needing:
            named = ", ".join(f"`{name}`" for name in needing)
            found[key] = f"none, but required for {named}" if taking else "required"
        elif len(set(literals.values())) == 1:
            found[key] = _literal(kinds.section, key, literals[taking[0]])
        else:
            found[key] = ", ".join(
                f"{_literal(kinds.section, key, value)} for `{name}`"
                for name, value in literals.items()
            )
    found[kinds.tag] = f'`"{kinds.usual}"`' if kinds.usual else "required"
    if kinds is STATISTIC:
        found[kinds.tag] = "required, except for a cross"
    return found


def _literal(section: type[msgspec.Struct], key: str, default: object) -> str:
    """A default as TOML has it; "" for a value that only stands for an omitted key."""
    value = {key: default}
    try:
        msgspec.convert(value, msgspec.defstruct("One", [(key, _type_of(section, key))]))
    except msgspec.ValidationError:
        return ""
    return f"`{json.dumps(default)}`"


def _type_of(section: type[msgspec.Struct], key: str) -> Any:
    return {each.encode_name: each.type for each in msgspec.structs.fields(section)}[key]


def _rows(
    section: type[msgspec.Struct],
    defaults: Mapping[str, str | None] = MappingProxyType({}),
    expected: Mapping[str, str] = MappingProxyType({}),
    of_kinds: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """A row per key. defaults and expected: cells that its type does not tell. of_kinds: what some
    kinds expect."""
    meanings = attribute_docstrings(section)
    for each in msgspec.inspect.type_info(section).fields:  # type: ignore[attr-defined]
        name, kind = each.encode_name, each.type
        phrase = expected.get(name, "")
        default = defaults.get(name, _literal(section, name, each.default))
        if default is None:
            continue
        phrase, kind = _described(kind, phrase)
        if isinstance(kind, EnumType):
            phrase = one_of((member.value for member in kind.cls), "")
        cells = (
            f"`{name}`",
            _type_name(kind),
            default,
            (phrase or bounds_of(kind)) + of_kinds.get(name, ""),
            meanings[each.name],
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _of_kinds(kinds: Variants[Any]) -> dict[str, str]:
    """Return the expected values of keys that have a type of their own in a kind."""
    found = {}
    for name, struct in kinds.structs.items():
        for each in msgspec.inspect.type_info(struct).fields:  # type: ignore[attr-defined]
            if each.encode_name in kinds.kinds[name].types:
                phrase, kind = _described(each.type)
                found[each.encode_name] = f"; for `{name}`: {phrase or bounds_of(kind)}"
    return found


def _described(kind: Any, phrase: str = "") -> tuple[str, Any]:
    """Return the expected value as a cell says it, and the type without its metadata."""
    while isinstance(kind, Metadata):
        phrase, kind = (kind.extra or {}).get("expected", phrase), kind.type
    return phrase.removeprefix("= "), kind


def _type_name(kind: object) -> str:
    if isinstance(kind, VarTupleType):
        item = kind.item_type.type if isinstance(kind.item_type, Metadata) else kind.item_type
        lists = {IntType: "list of whole numbers", FloatType: "list of numbers"}
        return lists.get(type(item), "list of names")
    if isinstance(kind, UnionType):
        return " or ".join(_type_name(_described(each)[1]) for each in kind.types)
    names: dict[type, str] = {
        FloatType: "number",
        IntType: "whole number",
        BoolType: "true or false",
    }
    return names.get(type(kind), "text")


def _kinds(kinds: Variants[Any]) -> Iterator[str]:
    common = [*kinds.always, kinds.tag]
    if kinds is STATISTIC:
        common = ["number"]
    beside = " and ".join(f"`{key}`" for key in common)
    yield f"\n| {kinds.tag} | keys besides {beside} | |\n|---|---|---|\n"
    for name, kind in kinds.kinds.items():
        keys = [*kind.needs, *kind.takes]
        if kinds is STATISTIC:
            keys = [kinds.tag, "of", *keys]
        yield f"| `{name}` | {', '.join(f'`{key}`' for key in keys)} | {kind.meaning} |\n"
    if kinds is STATISTIC:
        yield "| `cross` | `cross` | Buckets of statistics and values of fields, combined. |\n"
