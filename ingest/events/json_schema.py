"""JSON Schema of the events, derived from the types below, for producers to validate against.

A schema and `ingest.events.contract.read_event` accept the same events; a test tries both on random
ones. Two rules cannot be in a schema: a time more than a day ahead of the clock, and an impression
later than the joiner's window. Ticks are missing on purpose: only a replay writes them, because a
tick advances the time of a whole partition.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.ingest.events.contract import EARLIEST_MS, LATEST_MS

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]
"""The value of any other field."""

Identity = Annotated[
    str,
    Meta(
        min_length=1,
        description="Identifies one showing of one item to one user. It is the key of the message, "
        "and joins a click to its impression; a second impression with this id is dropped.",
    ),
]
Milliseconds = Annotated[
    int,
    Meta(
        ge=EARLIEST_MS,
        le=LATEST_MS,
        description="Time of the event, in milliseconds since 1970 UTC; at most a day ahead of the "
        "clock. 2.0 is 2.",
    ),
]


class EventKind(StrEnum):
    """The two kinds of events that producers send."""

    IMPRESSION = "impression"
    CLICK = "click"


class Impression(msgspec.Struct, kw_only=True):
    """A user saw one item. Every further field is a feature, with its value at that time."""

    impression_id: Identity
    timestamp_ms: Milliseconds
    request_id: Annotated[
        Value,
        Meta(description="Groups the impressions of one request; usually a string."),
    ] = None


class Click(msgspec.Struct, kw_only=True):
    """A user clicked a shown item. A click may arrive before its impression."""

    impression_id: Identity
    timestamp_ms: Milliseconds
    request_id: Annotated[
        Value,
        Meta(description="The request_id of its impression, if request_id is the key of events."),
    ] = None
    value: Annotated[
        Value, Meta(description="Number that describes the click, such as a dwell time or a price.")
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
        # a message is one flat object: its values may be arrays of scalars
        "additionalProperties": msgspec.json.schema(Value),
        "examples": [EXAMPLES[kind]],
    }
