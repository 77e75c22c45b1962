"""The JSON Schema of model specs, for editors.

Editors that read JSON Schema for TOML (Even Better TOML, taplo) complete the keys of a spec, show
their meaning and mark errors. The schema is made from the structs that parse a spec. Rules across
keys are not part of it: a cross of an unknown field passes the schema, and `parse_spec` refuses it.
"""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components
from msgspec.structs import fields

from headrace.ingest.features.fields import FIELDS, NAME, ExampleOptions, LabelPolicy
from headrace.ingest.features.spec_sections import Variants
from headrace.learner.spec.admission_and_expiry import ADMISSION, ExpirySection
from headrace.learner.spec.architecture import MODEL
from headrace.learner.spec.calibration_spec import CALIBRATION
from headrace.learner.spec.model_spec import SECTIONS
from headrace.learner.spec.optimizer_spec import DENSE, EMBEDDINGS, GROUP, WEIGHTS
from headrace.learner.spec.statistics_spec import STATISTIC, CrossedStatistic

Schema = dict[str, Any]

_KINDS: tuple[Variants[Any], ...] = (MODEL, FIELDS, STATISTIC, GROUP, ADMISSION, CALIBRATION)
_PLAIN = (LabelPolicy, ExampleOptions, ExpirySection, CrossedStatistic)


def spec_schema() -> Schema:
    """Return the schema: draft 7, which all editors support."""
    types = [*(each for kinds in _KINDS for each in kinds.structs.values()), *_PLAIN]
    _, definitions = schema_components(types, ref_template="#/definitions/{name}")
    for plain in _PLAIN:
        _describe(definitions[plain.__name__], plain)
    for kinds in _KINDS:
        for variant in kinds.structs.values():
            _describe(definitions[variant.__name__], kinds.section)
        if kinds.usual:
            definitions[kinds.structs[kinds.usual].__name__]["required"].remove(kinds.tag)
    properties: Schema = {
        "model": _any_of(MODEL.structs.values()),
        "fields": _named(_any_of(FIELDS.structs.values())) | {"minProperties": 1},
        "label": _any_of([LabelPolicy]),
        "examples": _any_of([ExampleOptions]),
        "statistics": _named(_any_of([*STATISTIC.structs.values(), CrossedStatistic])),
        "optimizer": {"anyOf": _weights(definitions)},
        "admission": _any_of(ADMISSION.structs.values()),
        "expiry": _any_of([ExpirySection]) | {"minProperties": 1},
        "calibration": _any_of(CALIBRATION.structs.values()),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "headrace model spec",
        "type": "object",
        "properties": {
            name: {"description": meaning} | properties[name] for name, meaning in SECTIONS.items()
        },
        "required": ["model", "fields"],
        "additionalProperties": False,
        "definitions": definitions,
    }


def _any_of(structs: Iterable[type[Struct]]) -> Schema:
    return {"anyOf": [{"$ref": f"#/definitions/{each.__name__}"} for each in structs]}


def _named(table: Schema) -> Schema:
    """Tables by name."""
    names = {"pattern": f"^{NAME.pattern}$"}
    return {"type": "object", "propertyNames": names, "additionalProperties": table}


def _weights(definitions: Schema) -> list[Schema]:
    """The kinds of [optimizer]: those of a group, with tables for the groups."""
    kinds = []
    for name, variant in WEIGHTS.structs.items():
        kind = dict(definitions[variant.__name__])
        groups = dict.fromkeys((EMBEDDINGS, DENSE), _any_of(GROUP.structs.values()))
        kind["properties"] = kind["properties"] | groups
        kind["required"] = [] if name == WEIGHTS.usual else [WEIGHTS.tag]
        kinds.append(kind)
    return kinds


def _describe(definition: Schema, section: type[Struct]) -> None:
    """Add the meaning of each key, and drop a default that stands for an omitted key."""
    meanings = attribute_docstrings(section)
    names = {each.encode_name: each.name for each in fields(section)}
    for key, value in definition["properties"].items():
        value["description"] = meanings[names[key]]
        if "pattern" in value:  # as JSON Schema has it
            value["pattern"] = value["pattern"].replace(r"\Z", "$")
        default = value.get("default")
        size = len(default) if isinstance(default, str | list | tuple) else default
        least = [value[bound] for bound in ("minimum", "minLength", "minItems") if bound in value]
        if size is not None and least and size < least[0]:
            del value["default"]


def attribute_docstrings(section: type) -> dict[str, str]:
    """Return the docstring below each attribute, which Python does not keep."""
    found = {}
    for kind in section.__mro__[::-1]:
        if kind.__module__.startswith("headrace."):
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
            for before, after in itertools.pairwise(tree.body):  # type: ignore[attr-defined]
                match before, after:
                    case (
                        ast.AnnAssign(target=ast.Name(name)),
                        ast.Expr(value=ast.Constant(str(text))),
                    ):
                        found[name] = " ".join(text.split())
    return found
