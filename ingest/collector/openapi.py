"""The part of the OpenAPI document that FastAPI cannot derive: the routes whose bodies are raw.

Schemas come from the types that answers are made of and from the published schemas of the events;
the examples can be sent as they stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import orjson
from fastapi.openapi.utils import get_openapi

from headrace.ingest.collector.body import JSON, NDJSON
from headrace.ingest.collector.responses import CollectorAnswer
from headrace.ingest.events import EXAMPLES, EventKind, event_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI

    from headrace.ingest.collector.backpressure import CollectorLimits

_ANSWERS = {
    "200": "Kafka has every event.",
    "400": "The body cannot be read as what its headers say; nothing of it was taken.",
    "401": "No token, or none that is good here.",
    "408": "The body did not come in time.",
    "413": "The body, the batch or every refused event is too large.",
    "415": "Another content type or encoding than those below.",
    "422": "Some events are wrong, which `refused` names; the others were accepted. To send the "
    "wrong ones again is of no use.",
    "429": "Too much waits for Kafka: nothing of the request was taken. Send it again after "
    "Retry-After.",
    "503": "Kafka did not acknowledge in time. Send again, after Retry-After, the events that "
    "`refused` calls `not_acknowledged`, or all if nothing was accepted.",
}

_ABOUT = """\
One event or an array of them as `application/json`, or one a line as `application/x-ndjson`;
`Content-Encoding: gzip` if the body is packed. At most {limits.batch_events:,} events of
{limits.event_bytes:,} bytes each, {limits.body_bytes:,} bytes together, as sent and unpacked.

**What is acknowledged is in Kafka**, on every replica that its `min.insync.replicas` asks for, in
the topic once for each acknowledgement. A bad event does not hold up its neighbours: it is refused
by its place in the batch, and the others are accepted.

**Sending again is harmless.** If an answer was lost, Kafka may have the events or not. A second
impression of the same `impression_id`, or a second click on it, is counted as a duplicate by the
joiner and not learned; so there is no key of idempotence to invent: `impression_id` is it.
"""


def document(
    app: FastAPI, paths: Mapping[EventKind, str], limits: CollectorLimits, *, asks_token: bool
) -> dict[str, Any]:
    """Return the OpenAPI document of the app, the routes for events included."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    (answer,), parts = msgspec.json.schema_components(
        [CollectorAnswer], ref_template="#/components/schemas/{name}"
    )
    schemas.update(parts)
    if asks_token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
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
        made["paths"][path] = {"post": operation}
    return made


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
