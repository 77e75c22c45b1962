"""A seek that is heeded: where a partition goes on, and whether it did.

A partition just assigned may refuse to seek until the client has begun with it. And while the
client still asks a slow broker for the partition's first offset, it takes a seek and forgets about
it half a second after the answer: from then on it reads from the beginning, however much was
delivered since. So whoever must not see a record twice compares offsets, and seeks again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ingest.foreign_errors import translate

if TYPE_CHECKING:
    from ingest.stream import Block, Source

_TIMEOUT_S = 5.0


def seek(consumer: Consumer, source: Source, offset: int, address: str) -> None:
    """Let what comes next of a source be from this offset on. Raises StreamError."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            consumer.seek(TopicPartition(source.topic, source.partition, offset))
        except KafkaException as error:
            busy = error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)  # noqa: SLF001
            if not busy or time.monotonic() > deadline_s:
                doing = f"seeking {source.topic}/{source.partition} to {offset}"
                raise translate(error, doing, address) from error
            time.sleep(0.002)
        else:
            return


def goes_on(block: Block, expected: int) -> bool:
    """Whether nothing in a block was delivered before: `expected` is the first that was not."""
    return bool(block.offsets[0] >= expected and (np.diff(block.offsets) > 0).all())
