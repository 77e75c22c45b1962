"""Validates events: accepts those that the joiner would accept.

The joiner's own rule decides, `ingest.events.contract.read_event`, so an event accepted here does
not become a dead letter there. The exception is an impression later than the label window: only the
joiner has the watermark. Only a refused event is parsed a second time, to describe it.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from headrace.ingest.collector.backpressure import CollectorLimits
from headrace.ingest.collector.responses import TOO_LARGE, EventRefusal
from headrace.ingest.events.contract import (
    AHEAD_MS,
    EARLIEST_MS,
    IMPRESSION_ID,
    REQUEST_ID,
    TIME,
    Reason,
    nested_field,
    read_event,
    request_key,
)

_LONGEST_SHOWN = 80

_OBJECT = "a JSON object"
_WANTED: dict[Reason, tuple[str, str]] = {
    Reason.EMPTY: ("", _OBJECT),
    Reason.NOT_JSON: ("", f"{_OBJECT} in UTF-8"),
    Reason.NOT_AN_OBJECT: ("", _OBJECT),
    Reason.NO_ID: (IMPRESSION_ID, "a string that is not empty"),
    Reason.BAD_ID: (IMPRESSION_ID, "a string that is not empty"),
    Reason.NO_TIME: (TIME, "a whole number of milliseconds since 1970"),
    Reason.BAD_TIME: (TIME, "a whole number of milliseconds since 1970"),
    Reason.BEFORE_2000: (TIME, f"milliseconds, {EARLIEST_MS} (the year 2000) or more"),
    Reason.AHEAD: (TIME, "at most a day ahead of now"),
    Reason.NESTED: ("", "a scalar or an array of scalars"),
}
"""Field and expectation. A nested value's field is searched for."""


class ValidatedEvent(NamedTuple):
    """An event to write."""

    place: int
    """Index in the batch, from 0."""
    key: bytes
    value: bytes


class ValidationResult(NamedTuple):
    """A batch, divided into valid and refused events."""

    messages: list[ValidatedEvent]
    refused: list[EventRefusal]


def check(
    events: Sequence[bytes], now_ms: int, limits: CollectorLimits, *, by_request: bool = False
) -> ValidationResult:
    """Divide events into valid and refused ones.

    by_request: whether the request id of an event, if it has one, is the key.
    """
    checked = ValidationResult([], [])
    taken, largest = checked.messages, limits.event_bytes
    for index, value in enumerate(events):
        if len(value) > largest:
            checked.refused.append(_too_large(index, len(value), limits))
            continue
        event = read_event(value, now_ms)
        if isinstance(event, Reason):
            checked.refused.append(_refused(index, value, event, now_ms))
        elif (identity := event.get(IMPRESSION_ID)) is None:
            # a tick moves the time of a whole partition: producers must not send one
            checked.refused.append(_refused(index, value, Reason.NO_ID, now_ms))
        else:
            key = request_key(event.get(REQUEST_ID)) if by_request else None
            taken.append(ValidatedEvent(index, key or identity.encode(), value))  # type: ignore[attr-defined]
    return checked


def _too_large(index: int, size_bytes: int, limits: CollectorLimits) -> EventRefusal:
    return EventRefusal(
        index=index,
        reason=TOO_LARGE,
        field="",
        expected=f"an event of at most {limits.event_bytes} bytes",
        found=f"{size_bytes} bytes",
    )


def _refused(index: int, value: bytes, reason: Reason, now_ms: int) -> EventRefusal:
    field, expected = _WANTED[reason]
    if reason is Reason.AHEAD:
        expected = f"{expected}: {now_ms + AHEAD_MS}"
    try:
        event = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        found = f"{_shown_bytes(value)}: {error}" if value else "nothing"
    else:
        if reason is Reason.NESTED:
            field = nested_field(event) or ""
        at_fault = event.get(field) if field else event
        found = "none" if at_fault is None else _shown(at_fault)
    return EventRefusal(
        index=index, reason=reason.name.lower(), field=field, expected=expected, found=found
    )


def _shown(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _shown_bytes(value: bytes) -> str:
    return _cut(value[: 2 * _LONGEST_SHOWN].decode(errors="backslashreplace"))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
