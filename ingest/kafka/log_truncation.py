"""Finds out whether Kafka's log lost records that were read before.

An unclean election, or a power loss at one replica, cuts the end of a log off. New records then get
the same offsets. A position that is an offset alone would count them as read, and skip them. Kafka
numbers the leaders of a partition, stores with each record the number of its leader (its leader
epoch), and knows where each epoch ended. A position with its epoch is therefore compared exactly:
if the log's history of that epoch ends before the position, the log was cut.

The Kafka client does this comparison when it starts at an offset with an epoch. *Refused:* passing
the epoch to the reader itself. A joiner starts to read long before its position, and a cut between
the two would go unnoticed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.consumer_group import membership
from headrace.ingest.kafka.error_translation import translated
from headrace.ingest.kafka.protocols import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.ingest.kafka.protocols import ReadPosition
    from headrace.ingest.kafka.settings import KafkaSettings


def truncated(settings: KafkaSettings, positions: Mapping[Source, ReadPosition]) -> list[Source]:
    """Return the sources whose logs lost records before these positions.

    Raises KafkaUnreachable.
    """
    config = {
        **settings.connection(),
        **membership(None, None),
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,
        "fetch.message.max.bytes": 1,  # the answer matters, not the records
    }
    waiting, found = set(positions), []
    with translated("comparing leader epochs", settings.bootstrap):
        consumer = Consumer(config)
    deadline_s = time.monotonic() + settings.connect_timeout_s
    try:
        consumer.assign(
            [
                TopicPartition(
                    source.topic, source.partition, at.offset, leader_epoch=at.leader_epoch
                )
                for source, at in positions.items()
            ]
        )
        while waiting and time.monotonic() < deadline_s:
            if (message := consumer.poll(0.1)) is None:
                continue
            source = Source(str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if source in waiting and error is not None and _is_truncation(error):
                found.append(source)
            waiting.discard(source)
    finally:
        consumer.close()
    if waiting:
        asked = ", ".join(f"{source.topic}/{source.partition}" for source in sorted(waiting))
        raise KafkaUnreachable(
            f"comparing leader epochs at {settings.bootstrap}: expected an answer for {asked} "
            f"within {settings.connect_timeout_s:g} s, got none"
        )
    return sorted(found)


def _is_truncation(error: KafkaError) -> bool:
    # the client has one code for all resets; an offset outside the log is found by `Reader.held`
    return error.code() == KafkaError._AUTO_OFFSET_RESET and "truncation" in error.str()  # noqa: SLF001
