"""What an event that cannot be used becomes: a JSON object in the topic of dead letters.

The event itself is in it as it came, so that it can be corrected and sent again, and where it lay,
so that it can be found among its neighbours.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from ingest.stream import Record

LARGEST_VALUE_BYTES = 64 << 10
"""Of the event kept in its dead letter; the offset finds the rest."""


def pack(record: Record, reason: str) -> bytes:
    """Return the dead letter: reason, topic, partition, offset, append_ms, and the event.

    The event is `value` if it is UTF-8, else `value_base64`; cut off at LARGEST_VALUE_BYTES, with
    `value_bytes` saying how many there were.
    """
    kept = record.value[:LARGEST_VALUE_BYTES]
    letter: dict[str, object] = {
        "reason": reason,
        "topic": record.source.topic,
        "partition": record.source.partition,
        "offset": record.offset,
        "append_ms": record.append_ms,
        "value_bytes": len(record.value),
    }
    try:
        letter["value"] = kept.decode()
    except UnicodeDecodeError:
        letter["value_base64"] = base64.b64encode(kept).decode()
    return orjson.dumps(letter)
