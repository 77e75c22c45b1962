"""Finds out whether Kafka's log lost records that were read before.

An unclean election, or a power loss at one replica, cuts the end of a log off. New records then get
the same offsets. A position that is an offset alone would count them as read, and skip them. Kafka
numbers the leaders of a partition, stores with each record the number of its leader (its leader
epoch), and knows where each epoch ended. A position with its epoch is therefore compared exactly:
if the log's history of that epoch ends before the position, the log was cut.

The Kafka client does this comparison when it starts at an offset with an epoch. *Refused:* passing
the epoch to the reader itself. A joiner starts to read long before its position, and a cut between
the two would go unnoticed.

A position may be behind markers of transactions, which readers do not get: then its epoch is that
of the record before the markers. A leader that was just elected may write the marker of a
transaction that began under the leader before. The history of the position's epoch then ends before
the position, though nothing was lost. So where the client finds a cut, the last committed record
before the position decides: it has the epoch of the position, or the log was cut.

`log_states` compares the stored positions of a scorer or a feeder at a start: the topic id, the
leader epoch and the ends of the log. Each of them decides what to do about a log that changed.
"""

import time
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.error_translation import answer_of, translated
from headrace.ingest.kafka.protocols import Committed, Reader, ReadPosition, Source
from headrace.ingest.kafka.reading.consumer_group import membership
from headrace.ingest.kafka.settings import KafkaSettings


class LogState(Enum):
    """The log of a source, compared with a stored position in it."""

    CONTINUED = auto()
    """It still has everything from the position on."""
    EXPIRED = auto()
    """Retention removed records after the position."""
    TRUNCATED = auto()
    """Kafka lost records before the position. Others may have their offsets now."""
    RECREATED = auto()
    """The topic was deleted and created again: its offsets are those of other records."""


def log_states(reader: Reader, stored: Mapping[Source, Committed]) -> dict[Source, LogState]:
    """Compare the log of each source with its stored position.

    The metadata of a position is the id of its topic; empty: unknown. Raises KafkaUnreachable.
    """
    found: dict[Source, LogState] = {}
    compared: dict[Source, ReadPosition] = {}
    topic_ids = {topic: reader.topic_id(topic) for topic in {source.topic for source in stored}}
    for source, position in stored.items():
        if position.metadata not in ("", topic_ids[source.topic]):
            found[source] = LogState.RECREATED
            continue
        first, end = reader.bounds(source, position.offset)
        if position.offset > end:
            found[source] = LogState.TRUNCATED
        elif position.offset < first:
            found[source] = LogState.EXPIRED
        else:
            found[source] = LogState.CONTINUED
            if position.offset > 0 and position.leader_epoch >= 0:
                compared[source] = ReadPosition(position.offset, position.leader_epoch)
    if compared:
        found |= dict.fromkeys(reader.truncated(compared), LogState.TRUNCATED)
    return found


def topic_ids(settings: KafkaSettings, admin: AdminClient, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics; a recreated topic has another. Raises KafkaUnreachable."""
    names = [settings.names.physical(topic) for topic in topics]
    with translated(f"asking for the ids of topics {', '.join(names)}", settings.bootstrap):
        futures = admin.describe_topics(
            TopicCollection(names), request_timeout=settings.connect_timeout_s
        )
        return {
            settings.names.logical(topic): str(answer_of(each).topic_id)
            for topic, each in futures.items()
        }


def truncated(settings: KafkaSettings, positions: Mapping[Source, ReadPosition]) -> list[Source]:
    """Return the sources whose logs lost records before these positions.

    Raises KafkaUnreachable.
    """
    config = _config(settings) | {
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
                    settings.names.physical(source.topic),
                    source.partition,
                    at.offset,
                    leader_epoch=at.leader_epoch,
                )
                for source, at in positions.items()
            ]
        )
        while waiting and time.monotonic() < deadline_s:
            if (message := consumer.poll(0.1)) is None:
                continue
            topic = settings.names.logical(str(message.topic()))
            source = Source(topic, int(message.partition() or 0))
            error = message.error()
            if source in waiting and error is not None and _is_truncation(error):
                found.append(source)
            waiting.discard(source)
    finally:
        consumer.close()
    if waiting:
        futures = ", ".join(f"{source.topic}/{source.partition}" for source in sorted(waiting))
        raise KafkaUnreachable(
            f"comparing leader epochs at {settings.bootstrap}: expected an answer for {futures} "
            f"within {settings.connect_timeout_s:g} s, got none"
        )
    return [
        source
        for source in sorted(found)
        if _last_epoch(settings, source, positions[source].offset) != positions[source].leader_epoch
    ]


def _config(settings: KafkaSettings) -> dict[str, Any]:
    """Return what a consumer without a group needs to report the end of each log."""
    return {
        **settings.connection(),
        **membership(settings, None, None),
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }


def _last_epoch(settings: KafkaSettings, source: Source, before: int) -> int:
    """Return the leader epoch of the last committed record before an offset; -1 without one.

    `records_before` would give it the epoch of the last record that came with it. Raises
    KafkaUnreachable.
    """
    config = _config(settings) | {
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    topic = settings.names.physical(source.topic)
    found, back = -1, 4
    with translated(f"reading {topic}/{source.partition} before {before}", settings.bootstrap):
        consumer = Consumer(config)
        try:
            while found < 0:
                start = max(before - back, 0)
                consumer.assign([TopicPartition(topic, source.partition, start)])
                found = _epoch_before(consumer, before, settings.connect_timeout_s)
                if start == 0:
                    break
                back *= 8
        finally:
            consumer.close()
    return found


def _epoch_before(consumer: Consumer, before: int, timeout_s: float) -> int:
    """Return the leader epoch of the last record that a consumer gets before an offset, or -1.

    -1, too, if the log ends before the offset.
    """
    epoch, deadline_s = -1, time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if (message := consumer.poll(0.1)) is None:
            continue
        if (error := message.error()) is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                return epoch if (message.offset() or 0) >= before else -1
            raise KafkaException(error)
        if (message.offset() or 0) >= before:
            return epoch
        epoch = -1 if (own := message.leader_epoch()) is None else own
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001


def _is_truncation(error: KafkaError) -> bool:
    # the client has one code for all resets; an offset outside the log is found by `Reader.bounds`
    return error.code() == KafkaError._AUTO_OFFSET_RESET and "truncation" in error.str()  # noqa: SLF001
