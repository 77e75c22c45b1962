"""The part of the OpenAPI document that FastAPI cannot derive: prediction, whose path is raw bytes.

Schemas come from the types that bodies are decoded into, so the page cannot promise what the
decoder refuses. The examples are made from the model's own fields and can be sent as they stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi.openapi.utils import get_openapi

from ingest.fields import Transform
from serving.answer import Answer
from serving.errors import RefusalBody

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI

    from ingest.fields import FieldSet
    from serving.app import Served

_REFUSALS = {
    "404": "No such model.",
    "413": "The body is too long.",
    "422": "The request is wrong: which field, what was expected, what was found.",
    "503": "The replica is not complete yet.",
}


def document(app: FastAPI, models: Mapping[str, Served]) -> dict[str, object]:
    """Return the OpenAPI document of the app, prediction for each of its models included."""
    made = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    for name, served in models.items():
        prefix = "".join(part.capitalize() for part in name.replace("-", "_").split("_"))
        request = _component(served.decoder.type, schemas, prefix)
        made["paths"][f"/v1/models/{name}:predict"] = {
            "post": {
                "summary": f"Probability of a click for each candidate, from model {name}",
                "operationId": f"predict_{name}",
                "tags": ["predict"],
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {
                            "schema": request,
                            "examples": examples(served.spec.fields),
                        }
                    },
                },
                "responses": _responses(schemas),
            }
        }
    return made


def examples(fields: FieldSet) -> dict[str, object]:
    """Return requests that the model answers as they stand."""
    event: dict[str, object] = {}
    for each in (*fields.singles, *fields.bags, *fields.numbers):
        match each.transform:
            case Transform.CROSS | Transform.HOUR | Transform.PERIOD:
                pass  # made of other fields; of the time of the request
            case Transform.BAG:
                event[each.source] = ["a", "b"]
            case Transform.NUMBER | Transform.LOG_BUCKET:
                event[each.source] = 3
            case _:
                event.setdefault(each.source, "1")
    own = dict(list(event.items())[:1])
    context = dict(list(event.items())[1:])
    candidates: Sequence[object] = [own, {**own, "impression_id": "shown-2"}]
    return {
        "candidates": {
            "summary": "What candidates share stands once, in the context",
            "value": {"context": context, "candidates": candidates},
        },
        "instances": {
            "summary": "Complete impressions, each by itself",
            "value": {"instances": [event]},
        },
    }


def _responses(schemas: dict[str, object]) -> dict[str, object]:
    refusal = {"application/json": {"schema": _component(RefusalBody, schemas, "")}}
    answers: dict[str, object] = {
        "200": {
            "description": "Predictions, in the order of the candidates.",
            "content": {"application/json": {"schema": _component(Answer, schemas, "")}},
        }
    }
    for code, text in _REFUSALS.items():
        answers[code] = {"description": text, "content": refusal}
    return answers


def _component(kind: type, schemas: dict[str, object], prefix: str) -> dict[str, object]:
    """Add a type and what it is made of to the schemas; return the reference to it."""
    (made,), parts = msgspec.json.schema_components(
        [kind], ref_template=f"#/components/schemas/{prefix}{{name}}"
    )
    for name, schema in parts.items():
        schemas[f"{prefix}{name}"] = schema
    return made
