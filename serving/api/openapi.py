"""Generates the OpenAPI document, including predictions, which FastAPI cannot derive.

Predictions read raw bytes, so FastAPI sees no types. The schemas here come from the types that the
decoders use, so the document cannot promise what a decoder refuses. The examples are made from the
fields of the model and can be sent as they are.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headrace.ingest.features.fields import FieldSet
from headrace.serving.api.admin import Switch
from headrace.serving.api.responses import ModelStatus, PredictResponse, RankResponse
from headrace.serving.models.registry import ModelRegistry
from headrace.serving.requests.candidates import ID, REQUEST_ID
from headrace.serving.requests.refusals import RefusalBody
from headrace.serving.requests.sample_requests import sample_fields, sample_request

Schemas = dict[str, object]

_PREDICT = "Click probability of every candidate"
_RANK = "Candidates by descending click probability"
_REFUSALS = {
    "401": "The token is missing or invalid.",
    "403": "The token does not allow this model.",
    "404": "No such model or alias.",
    "408": "The body did not arrive in time.",
    "412": "The request demands a fresher model or another snapshot than this server has.",
    "413": "The body is too large.",
    "415": "The body is compressed.",
    "422": "The request is invalid: the field, the expected value and the value found.",
    "429": "The client has sent more requests per second than its token allows. See Retry-After.",
    "503": "The replica is incomplete or the server is overloaded. See Retry-After.",
}


def document(app: FastAPI, models: ModelRegistry, *, asks_token: bool) -> dict[str, object]:
    """Return the OpenAPI document of the app, with the predictions of every model."""
    page = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
    )
    components = page.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    paths = page["paths"]
    refusal = _component(RefusalBody, schemas, "")
    for served in models:
        name = served.spec.name
        prefix = "".join(part.capitalize() for part in name.replace("-", "_").split("_"))
        examples_by_name = examples(served.spec.fields)
        ranked = {
            key: {**each, "value": {**each["value"], "top_k": 1}}
            for key, each in examples_by_name.items()
        }
        predict, rank = served.decoder.type, served.decoder.rank_type
        for verb, summary, request, shown, answer in (
            ("predict", _PREDICT, predict, examples_by_name, PredictResponse),
            ("rank", _RANK, rank, ranked, RankResponse),
        ):
            paths[f"/v1/models/{name}:{verb}"] = _post(
                (verb, name, f"{summary}, from model {name}"),
                _component(request, schemas, prefix),
                shown,
                _component(answer, schemas, ""),
                refusal,
            )
    _add_statuses(paths, _component(ModelStatus, schemas, ""), refusal)
    switch = {"required": True, **_json(_component(Switch, schemas, ""))}
    paths["/v1/aliases/{alias}"]["put"]["requestBody"] = switch
    if asks_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in paths.items():
            if path.endswith((":predict", ":rank")):
                methods["post"]["security"] = [{"token": []}]
    return page


def examples(fields: FieldSet) -> dict[str, dict[str, Any]]:
    """Return requests that the model answers as they are."""
    request = sample_request(fields)
    first, second = request["candidates"]
    return {
        "candidates": {
            "summary": "Shared fields once, in the context",
            "value": {**request, "candidates": [first, {**second, ID: "shown-2"}]},
        },
        "instances": {
            "summary": "Complete impressions",
            "value": {"instances": [sample_fields(fields, 1)], REQUEST_ID: "page-1"},
        },
    }


def _post(
    what: tuple[str, str, str],
    request: object,
    examples_by_name: Mapping[str, object],
    answer: object,
    refusal: object,
) -> dict[str, Any]:
    verb, name, summary = what
    answers: dict[str, object] = {"200": {"description": "The answer.", **_json(answer)}}
    for code, text in _REFUSALS.items():
        answers[code] = {"description": text, **_json(refusal)}
        if code in ("429", "503"):
            answers[code]["headers"] = {  # type: ignore[index]
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
    return {
        "post": {
            "summary": summary,
            "operationId": f"{verb}_{name}",
            "tags": [verb],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": request, "examples": examples_by_name}},
            },
            "responses": answers,
        }
    }


def _add_statuses(paths: dict[str, Any], status: object, refusal: object) -> None:
    one = paths["/v1/models/{name}"]["get"]["responses"]
    one["200"] = {"description": "The status.", **_json(status)}
    one["404"] = {"description": _REFUSALS["404"], **_json(refusal)}
    paths["/health/ready"]["get"]["responses"]["503"] = {"description": "Not ready."}


def _json(schema: object) -> dict[str, object]:
    return {"content": {"application/json": {"schema": schema}}}


def _component(kind: type, schemas: Schemas, prefix: str) -> dict[str, object]:
    """Add a type and its component types to the schemas; return the reference to it."""
    (page,), parts = msgspec.json.schema_components(
        [kind], ref_template=f"#/components/schemas/{prefix}{{name}}"
    )
    for name, schema in parts.items():
        schemas[f"{prefix}{name}"] = schema
    return page
