"""Dead letters: unusable events as JSON objects in a topic of their own.

A letter has the event as it came, with its key, so that it can be corrected and sent again. It also
has the event's origin, so that it can be found among its neighbours.

The same topic records which letters are settled. The transaction that sends repaired events back
also writes `SettledLetters`, with the origins of these events. So a letter is settled exactly when
its event returns, and the letters of two models about the same event are settled together. Refused:
committed offsets. They can only express "all up to here", and Kafka forgets those of a group
without members after a week.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import orjson

from headrace.ingest.events.contract import LARGEST_VALUE_BYTES, Reason
from headrace.runtime.undecodable import UNDECODABLE

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Record


_NAMES = {reason.value: reason.name.lower() for reason in Reason}


class Origin(NamedTuple):
    """The place an event came from; it identifies the event as long as it has letters."""

    topic: str
    partition: int
    offset: int
    append_ms: int
    """Distinguishes the events of a recreated topic."""

    def __str__(self) -> str:
        """Return the text topic/partition@offset."""
        return f"{self.topic}/{self.partition}@{self.offset}"


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, as read."""

    reason: str
    topic: str
    partition: int
    offset: int
    append_ms: int
    value_bytes: int
    value: str | None = None
    value_base64: bytes | None = None
    """An event that is not UTF-8; msgspec reads and writes bytes as base64."""
    key: str | None = None
    key_base64: bytes | None = None

    @property
    def origin(self) -> Origin:
        """The place the event came from."""
        return Origin(self.topic, self.partition, self.offset, self.append_ms)

    @property
    def reason_name(self) -> str:
        """The reason in a word, as in metrics; the sentence itself if it is not one of `Reason`."""
        return _NAMES.get(self.reason, self.reason)

    @property
    def event_bytes(self) -> bytes:
        """The event as it came, truncated to LARGEST_VALUE_BYTES."""
        if self.value_base64 is not None:
            return self.value_base64
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
    """Events whose letters are settled, written in the transaction that sends them back."""

    retried: tuple[Origin, ...] = ()
    """Repaired and sent again."""
    discarded: tuple[Origin, ...] = ()
    """Abandoned by an operator."""


def pack(record: Record, reason: str) -> bytes:
    """Return the dead letter: reason, topic, partition, offset, append_ms, key, and the event.

    The event is `value` if it is UTF-8, else `value_base64`. It is truncated to
    LARGEST_VALUE_BYTES; `value_bytes` has the original length. The key is stored the same way.
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
    """Return the content of a message of the topic; None if it is not headrace's."""
    try:
        message = _decode(value)
    except UNDECODABLE:
        return None
    return message.settled if isinstance(message, _SettledMessage) else message


def _as_text(values: Mapping[str, bytes]) -> dict[str, str]:
    """Return JSON strings: a value that is not UTF-8 in base64, under a name that ends so."""
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
