"""The contract with producers: which messages are events, and why others are refused.

An impression or a click is one JSON object with `impression_id` and `timestamp_ms`. Its topic tells
which of the two it is. An object with `timestamp_ms` alone is a tick, which advances the event time
of its partition. Invalid events are data: `read_event` returns the reason, and the joiner writes
the message with it to the dead letters. All other fields are kept as they are. `features.encoder`
describes how a field of the model handles unexpected values.
"""

from enum import StrEnum

import orjson

TIME = "timestamp_ms"
IMPRESSION_ID = "impression_id"
REQUEST_ID = "request_id"

EARLIEST_MS = 946_684_800_000
"""1 January 2000. An earlier time is in seconds, or was never set."""
LATEST_MS = 32_503_680_000_000
"""The year 3000: the latest time if no append time is known."""
AHEAD_MS = 86_400_000
"""Longest time after the append: allows for a replay's last tick and for bad clocks."""


def request_key(request_id: object) -> bytes | None:
    """Return the key of the partition of a request's events; None without a request id.

    Learners score the candidates of a request together, so they should be in one partition. A click
    must be in the partition of its impression. So the key of both is the request id if both have
    one, and the impression id otherwise.
    """
    if isinstance(request_id, str):
        return request_id.encode() or None
    return str(request_id).encode() if type(request_id) is int else None


class Reason(StrEnum):
    """Why an event is unusable, in the words of its dead letter.

    Dead letters store these sentences, so they must not change.
    """

    EMPTY = "expected a JSON object, found an empty message"
    NOT_JSON = "expected a JSON object, found bytes that are not JSON in UTF-8"
    NOT_AN_OBJECT = "expected a JSON object, found other JSON"
    NO_ID = "expected impression_id, found none"
    BAD_ID = "expected impression_id to be a string that is not empty, found another value"
    NO_TIME = "expected timestamp_ms, found none"
    BAD_TIME = "expected timestamp_ms to be a whole number of milliseconds, found another value"
    BEFORE_2000 = "expected timestamp_ms of the year 2000 or later, found an earlier one"
    AHEAD = "expected timestamp_ms at most a day after its append to Kafka, found a later one"
    NESTED = "expected fields that are scalars or arrays of scalars, found a nested value"
    BAD_WEIGHT = (
        "expected the field that the spec names as weight to be a number from 0 to a million, "
        "found another value"
    )
    TOO_LARGE = (
        "expected an event whose strings and bags take at most 1 MiB in an example, found more"
    )
    TOO_LATE = (
        "expected an impression at most one label window older than the newest before it, "
        "found an older one"
    )


def read_event(value: bytes, append_ms: int) -> dict[str, object] | Reason:
    """Return the event in a message, or the reason to refuse it.

    The result has `timestamp_ms` as an int, and `impression_id` unless it is a tick. `append_ms` is
    the time when Kafka appended the message; 0 or less if unknown.
    """
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError:
        return Reason.NOT_JSON if value else Reason.EMPTY
    if type(event) is not dict:
        return Reason.NOT_AN_OBJECT
    time_ms = event.get(TIME)
    if type(time_ms) is not int:
        # 2 and 2.0 are one value: some producers have no integers
        if type(time_ms) is not float or not time_ms.is_integer():
            return Reason.NO_TIME if time_ms is None else Reason.BAD_TIME
        event[TIME] = time_ms = int(time_ms)
    if time_ms < EARLIEST_MS:
        return Reason.BEFORE_2000
    if time_ms > (append_ms + AHEAD_MS if append_ms > 0 else LATEST_MS):
        return Reason.AHEAD
    identity = event.get(IMPRESSION_ID)
    if type(identity) is not str or not identity:
        return _without_id(event)
    # a second object or an array: the only ways to nest, and rare enough for a closer look
    if (b"[" in value or value.count(b"{") > 1) and nested_field(event) is not None:
        return Reason.NESTED
    return event


def is_tick(event: dict[str, object]) -> bool:
    """Whether the event only advances time."""
    return IMPRESSION_ID not in event


def _without_id(event: dict[str, object]) -> dict[str, object] | Reason:
    if event.get(IMPRESSION_ID) is not None:
        return Reason.BAD_ID
    return event if len(event) == 1 else Reason.NO_ID


def nested_field(event: dict[str, object]) -> str | None:
    """Return the first field with an object, or with an array of other than scalars."""
    for name, value in event.items():
        if isinstance(value, dict):
            return name
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            return name
    return None


LARGEST_VALUE_BYTES = 64 << 10
"""Largest part of an event that its dead letter keeps; the offset finds the rest."""

LARGEST_EXAMPLE_BYTES = 1 << 20
"""Largest size of one event's strings and bags in an example. With the bound on messages
(`ingest.examples.splitting`) it keeps every message of examples below Kafka's limit.
"""
