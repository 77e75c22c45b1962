"""The topic of a relay: its name and settings, and the positions of its last complete blocks.

The topic has one partition, because a transaction of a relay concerns all buckets. It is kept for
twice the time in which every bucket gets a new base, so it always has a base of each bucket. A
reader begins at its first message. *Refused:* compaction by bucket. A base has several messages,
and the blocks after it are changes.
"""

from collections.abc import Iterable

from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.topics import LARGEST_MESSAGE_BYTES, TopicSpec
from headrace.pserver.relay.relay_block import RelayPosition, block_header

_SEGMENTS = 8
"""Kafka deletes whole segments: so many in the time that the topic is kept."""
_LEAST_SEGMENT_MS = 60_000


def relay_topic(model: str) -> str:
    """Return the topic of a model's relay."""
    return f"relay.{model}"


def relay_source(model: str) -> Source:
    """Return its only partition."""
    return Source(relay_topic(model), 0)


def relay_topic_spec(model: str, base_interval_ms: int) -> TopicSpec:
    """Return the settings of the topic, given the time in which every bucket gets a new base."""
    kept_ms = 2 * base_interval_ms
    required = {"cleanup.policy": "delete", "max.message.bytes": str(LARGEST_MESSAGE_BYTES)}
    preferred = {
        "compression.type": "producer",
        "retention.ms": str(kept_ms),
        "segment.ms": str(max(_LEAST_SEGMENT_MS, kept_ms // _SEGMENTS)),
    }
    return TopicSpec(relay_topic(model), 1, required, preferred)


def last_positions(blocks: Iterable[bytes]) -> dict[int, RelayPosition]:
    """Return the position of each bucket after these blocks, from which a relay continues.

    A bucket whose last base is incomplete is missing. Raises CorruptEntry.
    """
    found: dict[int, RelayPosition] = {}
    for blob in blocks:
        header = block_header(blob)
        if header.last:
            found[header.bucket] = header.stop
        else:
            found.pop(header.bucket, None)
    return found
