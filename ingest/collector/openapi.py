"""The part of the OpenAPI document that FastAPI cannot derive: the routes with raw bodies.

Schemas come from the types of the answers and from the published schemas of the events. The
examples can be sent as they are.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.body import JSON, NDJSON
from headrace.ingest.collector.responses import CollectorAnswer
from headrace.ingest.events.json_schema import EXAMPLES, EventKind, event_schema

_ANSWERS = {
    "200": "Kafka has every event.",
    "400": "The body does not match its headers; no event was accepted.",
    "401": "The token is missing or invalid.",
    "408": "The body did not arrive in time.",
    "413": "The body or the batch is too large, or every refused event is.",
    "415": "The collector does not support the content type or the encoding.",
    "422": "Some events are invalid, see `refused`; the others were accepted. Sending the invalid "
    "ones again does not help.",
    "429": "Too many events wait for Kafka: no event was accepted. Send the request again after "
    "Retry-After.",
    "503": "Kafka did not acknowledge in time. Send again, after Retry-After, the events that "
    "`refused` calls `not_acknowledged`, or all if `accepted` is 0.",
}

_ABOUT = """\
One event or an array of events as `application/json`, or one a line as `application/x-ndjson`;
`Content-Encoding: gzip` if the body is compressed. At most {limits.batch_events:,} events of
{limits.event_bytes:,} bytes each, {limits.body_bytes:,} bytes together, as sent and as unpacked.

**Kafka has every acknowledged event**, on as many replicas as its `min.insync.replicas` requires.
The topic contains the event once for each acknowledgement. An invalid event does not block its
batch: `refused` names its index, and the collector accepts the others.

**Sending again is safe.** If an answer was lost, Kafka may have the events or not. The joiner
counts a second impression or click with the same `impression_id` as a duplicate, and the model does
not learn it. Requests need no idempotency key: `impression_id` is the key.
"""


def document(
    app: FastAPI, paths: Mapping[EventKind, str], limits: CollectorLimits, *, asks_token: bool
) -> dict[str, Any]:
    """Return the OpenAPI document of the app, including the routes for events."""
    page = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = page.setdefault("components", {}).setdefault("schemas", {})
    (answer,), parts = msgspec.json.schema_components(
        [CollectorAnswer], ref_template="#/components/schemas/{name}"
    )
    schemas.update(parts)
    if asks_token:
        page["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for kind, path in paths.items():
        name = kind.value.capitalize()
        schemas[name] = {k: v for k, v in event_schema(kind).items() if k != "$schema"}
        operation: dict[str, Any] = {
            "summary": f"Send {kind.value}s",
            "description": _ABOUT.format(limits=limits),
            "operationId": f"send_{kind.value}s",
            "tags": ["events"],
            "requestBody": {"required": True, "content": _content(kind, name)},
            "responses": {
                status: {"description": text, "content": {JSON: {"schema": answer}}}
                for status, text in _ANSWERS.items()
            },
        }
        if asks_token:
            operation["security"] = [{"token": []}]
        page["paths"][path] = {"post": operation}
    return page


def _content(kind: EventKind, schema: str) -> dict[str, Any]:
    one = EXAMPLES[kind]
    other = {**one, "impression_id": "shown-2"}
    event = {"$ref": f"#/components/schemas/{schema}"}
    lines = b"\n".join(map(orjson.dumps, (one, other))).decode()
    return {
        JSON: {
            "schema": {"anyOf": [event, {"type": "array", "items": event, "minItems": 1}]},
            "examples": {
                "one": {"summary": "One event", "value": one},
                "batch": {"summary": "A batch", "value": [one, other]},
            },
        },
        NDJSON: {
            "schema": {"type": "string"},
            "examples": {"lines": {"summary": "One event a line", "value": f"{lines}\n"}},
        },
    }
