"""Which events are taken: those that the joiner would take.

The joiner's own rule decides, `ingest.events.contract.read_event`, so that what is accepted here is
not a dead letter there, but for an impression that comes later than the label window: only the
joiner knows how far time has got. Only a refused event is looked at a second time, to say what was
found.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import orjson

from headrace.ingest.collector.responses import TOO_LARGE, EventRefusal
from headrace.ingest.events import AHEAD_MS, EARLIEST_MS, IMPRESSION_ID, TIME, Reason, read_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.ingest.collector.backpressure import CollectorLimits

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
"""Field and what is expected of it; of a nested value the field is found by looking."""


class ValidatedEvent(NamedTuple):
    """An event to be written."""

    place: int
    """In the batch, from 0."""
    key: bytes
    value: bytes


class ValidationResult(NamedTuple):
    """A batch sorted."""

    messages: list[ValidatedEvent]
    refused: list[EventRefusal]


def check(events: Sequence[bytes], now_ms: int, limits: CollectorLimits) -> ValidationResult:
    """Sort events into those to be written and those refused."""
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
            # a tick moves the time of a whole partition: not for a producer to say
            checked.refused.append(_refused(index, value, Reason.NO_ID, now_ms))
        else:
            taken.append(ValidatedEvent(index, identity.encode(), value))  # type: ignore[attr-defined]
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
            field = _nested_field(event)
        at_fault = event.get(field) if field else event
        found = "none" if at_fault is None else _shown(at_fault)
    return EventRefusal(
        index=index, reason=reason.name.lower(), field=field, expected=expected, found=found
    )


def _nested_field(event: dict[str, object]) -> str:
    for name, value in event.items():
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, dict) for item in items):
            return name
        if isinstance(value, list) and any(isinstance(item, list) for item in items):
            return name
    raise AssertionError(f"expected a nested value, found {event}")


def _shown(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _shown_bytes(value: bytes) -> str:
    return _cut(value[: 2 * _LONGEST_SHOWN].decode(errors="backslashreplace"))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
