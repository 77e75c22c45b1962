"""What an event that cannot be used becomes: a JSON object in the topic of dead letters.

The event itself is in it as it came, with its key, so that it can be corrected and sent again, and
where it lay, so that it can be found among its neighbours.

The same topic says which letters are done with. `SettledLetters` is written there in the
transaction that sends repaired events back, and names the events it is about by where they first
lay: so that a letter is settled for good together with its event's return, and two models' letters
about the same event are settled as one. Committed offsets would not do: they can only say "all up
to here", and Kafka forgets those of a group that nobody is in after a week.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import orjson

from headrace.ingest.events import LARGEST_VALUE_BYTES, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.ingest.kafka import Record


_NAMES = {reason.value: reason.name.lower() for reason in Reason}


class Origin(NamedTuple):
    """Where an event lay: its name as long as it has letters."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    """Tells apart the events of a topic that was made again."""

    def __str__(self) -> str:
        """Return it as text: topic/partition@offset."""
        return f"{self.topic}/{self.partition}@{self.offset}"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as it is read."""

    reason: str
    topic: str
    partition: int
    offset: int
    append_ms: int
    value_bytes: int
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None

    @property
    def origin(self) -> Origin:
        """Where the event lay."""
        return Origin(self.topic, self.partition, self.offset, self.append_ms)

    @property
    def reason_name(self) -> str:
        """The reason in a word, as metrics have it; the sentence itself if it is none of ours."""
        return _NAMES.get(self.reason, self.reason)

    @property
    def event_bytes(self) -> bytes:
        """The event as it came, cut off at LARGEST_VALUE_BYTES."""
        if self.value_base64 is not None:
            return base64.b64decode(self.value_base64)
        return (self.value or "").encode()

    @property
    def event(self) -> dict[str, object] | None:
        """The event, if it is a JSON object."""
        try:
            event = orjson.loads(self.event_bytes)
        except orjson.JSONDecodeError:
            return None
        return event if isinstance(event, dict) else None


class SettledLetters(msgspec.Struct, frozen=True, kw_only=True):
    """Events whose letters are done with, written in the transaction that sent them back."""

    retried: tuple[Origin, ...] = ()
    """Sent again, repaired."""
    discarded: tuple[Origin, ...] = ()
    """Given up by a person."""


def pack(record: Record, reason: str) -> bytes:
    """Return the dead letter: reason, topic, partition, offset, append_ms, key, and the event.

    The event is `value` if it is UTF-8, else `value_base64`; cut off at LARGEST_VALUE_BYTES, with
    `value_bytes` saying how many there were. The key, if there is one, likewise.
    """
    letter: dict[str, object] = {
        "reason": reason,
        "topic": record.source.topic,
        "partition": record.source.partition,
        "offset": record.offset,
        "append_ms": record.append_ms,
        "value_bytes": len(record.value),
    }
    texts = {"value": record.value}
    if record.key is not None:
        texts["key"] = record.key
    return orjson.dumps(letter | _as_text(texts))


def pack_settled(settled: SettledLetters) -> bytes:
    """Return the message that settles letters."""
    return msgspec.json.encode({"settled": settled})


def unpack(value: bytes) -> Letter | SettledLetters | None:
    """Return what a message of the topic says; None if it is not ours."""
    try:
        message = _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return message.settled if isinstance(message, _SettledMessage) else message


def _as_text(values: Mapping[str, bytes]) -> dict[str, str]:
    """Return each as a JSON string: as it is if it is UTF-8, else in base64, and called so."""
    texts = {}
    for name, value in values.items():
        kept = value[:LARGEST_VALUE_BYTES]
        try:
            texts[name] = kept.decode()
        except UnicodeDecodeError:
            texts[f"{name}_base64"] = base64.b64encode(kept).decode()
    return texts


class _SettledMessage(msgspec.Struct):
    settled: SettledLetters


_letter = msgspec.json.Decoder(Letter).decode
_settled = msgspec.json.Decoder(_SettledMessage).decode


def _decode(value: bytes) -> Letter | _SettledMessage:
    return _settled(value) if value.startswith(b'{"settled"') else _letter(value)
