"""Lists the routes of the collector and of a server, from their OpenAPI documents."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from headrace.ingest.collector.app import CollectorParts, make_app
from headrace.ingest.collector.backpressure import CollectorLimits, MemoryBound
from headrace.ingest.collector.collector_metrics import CollectorMetrics
from headrace.ingest.collector.delivery import Delivery
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.spec.schema import attribute_docstrings
from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.server import Readiness
from headrace.runtime.http.token_grants import TokenLimits
from tests.ingest.collector.collecting import TOPICS
from tests.ingest.collector.fake_producer import FakeProducer
from tests.serving.served_models import Serving, memory_store, news

HEAD = """# HTTP

The collector takes events; a server answers predictions. Both publish this reference for your own
model and settings: `/docs` as a page, `/openapi.json` as a document. The guides for
[producers](../guides/producing.md) and [serving](../guides/serving.md) explain how to use them.

An error says which field was wrong, what was expected, and what was found:

```json
{"error": {"field": "candidates[3].price", "expected": "a number", "found": "\\"cheap\\""}}
```
"""
COLLECTOR = "\n## Collector\n\nStart it with `headrace ingest collect`.\n"
SERVER = """
## Server

Start it with `headrace serving run`. The examples are for a small model named `news`, whose fields
appear in `context` and `candidates`. Your model's own fields take their place.
"""
_TOKEN = "a-token-that-is-long-enough"


def page() -> str:
    """Return the page of routes."""
    return HEAD + COLLECTOR + _routes(_collector()) + SERVER + _routes(_server())


def _collector() -> dict[str, Any]:
    registry = CollectorRegistry()
    delivery = Delivery(KafkaSettings("fake:9092"), 15.0, 2, FakeProducer().make)
    metrics = CollectorMetrics(registry)
    bound, readiness = MemoryBound(CollectorLimits()), Readiness()
    given = Tokens([_TOKEN]), TokenLimits(())
    parts = CollectorParts(TOPICS, delivery, bound, *given, metrics, readiness)
    return make_app(parts).openapi()


def _server() -> dict[str, Any]:
    return Serving(memory_store(news()), tokens=[_TOKEN]).app.openapi()


def _routes(document: dict[str, Any]) -> str:
    parts = []
    told: dict[str, str] = {}
    for path, methods in document["paths"].items():
        if "/versions/" in path:
            continue  # the same routes once more, for clients that name a version
        for method, operation in methods.items():
            route = f"`{method.upper()} {path}`"
            parts.append(f"\n### {route}\n\n{operation['summary']}.\n")
            parts.append(_request(operation, told, route))
            parts.append(_answers(operation, told, route))
    parts.append(_schemas(document.get("components", {}).get("schemas", {})))
    return "".join(parts)


def _request(operation: dict[str, Any], told: dict[str, str], route: str) -> str:
    """Describe a request. told: what an earlier route said, and which."""
    parts = []
    if description := operation.get("description", "").strip():
        before = told.setdefault(description, route)
        parts.append(f"\n{description if before == route else f'See {before}.'}\n")
    contents = operation.get("requestBody", {}).get("content", {})
    if contents:
        names = [f"{_type(each['schema'])} as `{kind}`" for kind, each in contents.items()]
        parts.append(f"\nBody: {'; '.join(names)}.\n")
    for kind, content in contents.items():
        for example in content.get("examples", {}).values():
            value = example["value"]
            text = value if isinstance(value, str) else json.dumps(value)
            parts.append(f"\n{example['summary']} (`{kind}`):\n\n```json\n{text.strip()}\n```\n")
    return "".join(parts)


def _answers(operation: dict[str, Any], told: dict[str, str], route: str) -> str:
    rows, elsewhere = [], set[str]()
    for status, answer in operation["responses"].items():
        if answer["description"] in ("Validation Error", "Successful Response"):
            continue  # the former is FastAPI's own, which headrace never sends
        [schema] = [each["schema"] for each in answer.get("content", {}).values()] or [{}]
        before = told.setdefault(f"{status} {answer['description']}", route)
        if before == route or status == "200":
            rows.append(f"| {status} | {answer['description']} | {_type(schema)} |\n")
        else:
            elsewhere.add(before)
    table = ["\n| status | meaning | body |\n|---|---|---|\n", *rows] if rows else []
    as_for = [f"\nOther statuses: see {', '.join(sorted(elsewhere))}.\n"] if elsewhere else []
    return "".join([*table, *as_for])


def _schemas(schemas: dict[str, Any]) -> str:
    parts = []
    for name, schema in sorted(schemas.items()):
        if name in ("HTTPValidationError", "ValidationError") or not schema.get("properties"):
            continue
        meanings = _meanings(name)
        required = schema.get("required", [])
        parts.append(f"\n#### {name}\n\n")
        if schema.get("description"):
            parts.append(f"{schema['description'].strip()}\n\n")
        parts.append("| property | type | required | |\n|---|---|---|---|\n")
        for key, value in schema["properties"].items():
            text = " ".join((value.get("description") or meanings.get(key, "")).split())
            needed = "yes" if key in required else ""
            parts.append(f"| `{key}` | {_type(value)} | {needed} | {text} |\n")
    return "".join(parts)


def _type(schema: dict[str, Any]) -> str:
    """Name a schema as a cell of a table."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items') or {})}".strip()
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    named = schema.get("type", "")
    return ", ".join(named) if isinstance(named, list) else str(named)


def _meanings(name: str) -> dict[str, str]:
    """The meanings of the attributes of the struct that a schema is made from."""
    for kind in _structs(msgspec.Struct):
        if name == kind.__name__ and kind.__module__.startswith("headrace."):
            return attribute_docstrings(kind)
    return {}


def _structs(kind: type) -> Iterator[type]:
    """The subclasses of a type, and theirs."""
    below: type
    for below in kind.__subclasses__():
        yield below
        yield from _structs(below)
