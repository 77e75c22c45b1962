"""JSON Schema of the events, made from the types below: what producers may check against.

A schema and `ingest.events.contract.read_event` accept the same events, which a test holds by
trying both on random ones, but for what no schema can say: a time more than a day ahead of the
clock, or an impression later than the joiner's window. A tick is not among them: it is no event of
a producer but a replay's, and moves the time of a whole partition.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.ingest.events.contract import EARLIEST_MS, LATEST_MS

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]
"""Of any other field."""

Identity = Annotated[
    str,
    Meta(
        min_length=1,
        description="Names one showing of one item to one user. The key of the message, and what "
        "a click is joined by; a second impression of the same name is dropped.",
    ),
]
Milliseconds = Annotated[
    int,
    Meta(
        ge=EARLIEST_MS,
        le=LATEST_MS,
        description="When it happened, in milliseconds since 1970 UTC; at most a day ahead of the "
        "clock. 2.0 is 2.",
    ),
]


class EventKind(StrEnum):
    """The two events of a producer."""

    IMPRESSION = "impression"
    CLICK = "click"


class Impression(msgspec.Struct, kw_only=True):
    """One item was shown. Every further field is a feature as it was when it was shown."""

    impression_id: Identity
    timestamp_ms: Milliseconds
    request_id: Annotated[
        Value,
        Meta(description="Groups the impressions that answered one request; a string, as a rule."),
    ] = None


class Click(msgspec.Struct, kw_only=True):
    """An item that was shown was clicked. It may come before its impression does."""

    impression_id: Identity
    timestamp_ms: Milliseconds
    value: Annotated[
        Value, Meta(description="What the click was worth: a dwell time, a price; a number.")
    ] = None


_TYPES: dict[EventKind, type[Impression | Click]] = {
    EventKind.IMPRESSION: Impression,
    EventKind.CLICK: Click,
}

EXAMPLES: dict[EventKind, dict[str, object]] = {
    EventKind.IMPRESSION: {
        "impression_id": "shown-1",
        "timestamp_ms": 1_767_225_600_000,
        "request_id": "page-1",
        "article_id": "9803607",
        "device_type": 2,
        "is_subscriber": False,
        "topics": ["sport", "cycling"],
        "slate_size": 12,
    },
    EventKind.CLICK: {
        "impression_id": "shown-1",
        "timestamp_ms": 1_767_225_605_000,
        "value": 31.5,
    },
}


def event_schema(kind: EventKind) -> dict[str, object]:
    """Return the JSON Schema (2020-12) of an event."""
    event_type = _TYPES[kind]
    _, parts = msgspec.json.schema_components([event_type])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **parts[event_type.__name__],
        # a message is one flat object: arrays may be among its values, but hold scalars alone
        "additionalProperties": msgspec.json.schema(Value),
        "examples": [EXAMPLES[kind]],
    }
