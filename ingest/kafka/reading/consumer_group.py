"""Membership in a consumer group, and how a seek is made reliable.

How the group is joined depends on whether the process has a name that stays over restarts:

    no instance   the consumer protocol of KIP-848: members come and go without stopping the others
    instance      a static member of a classic group: a process that was killed and comes back has
                  its partitions again at once. KIP-848 refuses it until the session of the dead
                  member ends: 45 seconds at the broker's defaults.

All members of a group must be of one kind. Both use the range assignor, because other assignors do
not keep impressions-p with clicks-p in one process.

Kafka fences a static member when another one joins under its name, and then the member must stop.
But the client also causes this by itself. If it hears nothing from Kafka for a session (a broker
was away), it forgets its member id and waits for its process to release the partitions. The process
releases them at its next poll, which it cannot reach while it waits for a transaction. Until then
the client sends heartbeats with the instance and no member id, and the broker that came back takes
it for an impostor. So a member that is called fenced asks Kafka for the current member. If Kafka
returns the member itself, or no member, no other process took over.

Seeking: a newly assigned partition may refuse to seek until the client has started it. While the
client still asks a slow broker for the partition's first offset, it accepts a seek and forgets it
half a second after the answer. From then on it reads from the beginning, although records were
delivered since. So a reader that must not see a record twice compares offsets, and seeks again.

Resuming: while all partitions of a broker are paused, the client's thread sleeps for up to a
second. A resume does not wake it, but a seek does.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.ingest.kafka.error_translation import answer_of, translate, translated
from headrace.ingest.kafka.protocols import MessageBlock, Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import LARGEST_MESSAGE_BYTES

SPARE_AFTER_S = 30.0
"""Longer than the group takes to assign partitions to a new member."""

HARMLESS = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError.REBALANCE_IN_PROGRESS})  # noqa: SLF001
"""The client rejoins by itself; lost partitions come as `PartitionRevoked`."""

_FETCH_WAIT_MS = 100
"""Time for which a broker holds an empty fetch; one with records returns at once. Only an empty
fetch reveals the end of a partition that ends in a transaction marker, and only then does the
client obey a seek. With 10 ms, five idle consumers took 0.21 cores of a broker; now 0.05."""


def consumer_config(settings: KafkaSettings, *, read_committed: bool) -> dict[str, object]:
    """Return the configuration that every reader shares, without its membership."""
    return {
        **settings.connection(),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        "auto.offset.reset": "error",  # a gap must raise, not be skipped
        "fetch.wait.max.ms": _FETCH_WAIT_MS,
        "fetch.queue.backoff.ms": 5,  # a full queue is checked again at once
        "fetch.message.max.bytes": 2 << 20,
        "receive.message.max.bytes": 100 << 20,
        "message.max.bytes": LARGEST_MESSAGE_BYTES,
        "queued.max.messages.kbytes": 64 << 10,
    }


def membership(
    settings: KafkaSettings, group: str | None, instance: str | None
) -> dict[str, object]:
    """Return the configuration of a consumer's membership in a group."""
    config: dict[str, object] = {
        # the client requires one; it is not joined
        "group.id": settings.names.physical(group or "headrace.reader"),
    }
    if group is None:
        return config
    if instance is None:
        return {**config, "group.protocol": "consumer", "group.remote.assignor": "range"}
    return {
        **config,
        "group.protocol": "classic",
        "group.instance.id": instance,
        "partition.assignment.strategy": "range",
        "session.timeout.ms": 6_000,  # how long the partitions of a dead machine stay unread
        "heartbeat.interval.ms": 1_500,
    }


def member_of_instance(settings: KafkaSettings, group: str, instance: str) -> str | None:
    """Return the member id of `instance` in the group; None if missing. Raises KafkaUnreachable."""
    group = settings.names.physical(group)
    with translated(f"asking for the members of {group}", settings.bootstrap):
        # an older client may know the group's coordinator by a connection that is gone
        admin = AdminClient(settings.connection())
        futures = admin.describe_consumer_groups(
            [group], request_timeout=settings.connect_timeout_s
        )
        described = answer_of(futures[group])
    named = (member for member in described.members if member.group_instance_id == instance)
    return next((str(member.member_id) for member in named), None)


_TIMEOUT_S = 5.0


def named(partitions: list[TopicPartition]) -> str:
    """Return partitions as text, by topic: impressions/0,1 clicks/0,1."""
    numbers: dict[str, list[int]] = {}
    for each in sorted(partitions, key=lambda each: each.partition):
        numbers.setdefault(each.topic, []).append(each.partition)
    texts = (f"{topic}/{','.join(map(str, own))}" for topic, own in numbers.items())
    return " ".join(texts) or "no partitions"


def seek(consumer: Consumer, source: Source, offset: int, settings: KafkaSettings) -> None:
    """Make a source continue at this offset. Raises StreamError."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            consumer.seek(partition_of(settings, source, offset))
        except KafkaException as error:
            busy = error.args[0].code() in (KafkaError._STATE, KafkaError._PREV_IN_PROGRESS)  # noqa: SLF001
            if not busy or time.monotonic() > deadline_s:
                doing = f"seeking {source.topic}/{source.partition} to {offset}"
                raise translate(error, doing, settings.bootstrap) from error
            time.sleep(0.002)
        else:
            return


def fetch(consumer: Consumer, offsets: Mapping[Source, int], settings: KafkaSettings) -> None:
    """Resume sources at these offsets, at once. Raises StreamError."""
    consumer.resume([partition_of(settings, source) for source in offsets])
    for source, offset in offsets.items():
        seek(consumer, source, offset, settings)


def partition_of(
    settings: KafkaSettings, source: Source, offset: int = OFFSET_INVALID
) -> TopicPartition:
    """Return a source as the client names it."""
    return TopicPartition(settings.names.physical(source.topic), source.partition, offset)


def block_of(source: Source, messages: Sequence[Message]) -> MessageBlock:
    """Return one or more messages of one source as a block."""
    leader_epoch = messages[-1].leader_epoch()
    return MessageBlock(
        source,
        np.fromiter(map(Message.offset, messages), np.int64, len(messages)),
        np.array([append_ms for _, append_ms in map(Message.timestamp, messages)], np.int64),
        [value or b"" for value in map(Message.value, messages)],
        list(map(Message.key, messages)),
        -1 if leader_epoch is None else leader_epoch,
    )


def resumes_at(block: MessageBlock, expected: int) -> bool:
    """Whether a block has no record delivered before; `expected` is the first new offset."""
    return bool(block.offsets[0] >= expected and (np.diff(block.offsets) > 0).all())
