"""How a consumer is a member of its group, and whether one that Kafka calls fenced is.

How the group is joined depends on whether the process has a name that stays over restarts:

    no instance   the consumer protocol of KIP-848: members come and go without stopping the others
    instance      a static member of a classic group: a process that was killed and comes back has
                  its partitions again at once. KIP-848 refuses it until the session of the dead one
                  is over: 45 seconds at the broker's defaults.

All members of a group must be of one kind. Either way partitions fall by range, since other
assignors do not keep impressions-p with clicks-p in one process.

Kafka fences a static member when another one joins under its name, and then it must stop. But the
client brings this upon itself, too. When it heard nothing of Kafka for a session (a broker was
away), it forgets which member it was and waits for its process to let go of the partitions; until
that polls again, which it cannot while it waits for a transaction, the client goes on with
heartbeats that name the instance and no member, and the broker that came back takes it for an
impostor. So whoever is called fenced asks who the member is: itself as it was, or nobody, means
that nobody took over.

A seek that is heeded: where a partition goes on, and whether it did.

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
from confluent_kafka.admin import AdminClient

from headrace.ingest.kafka.error_translation import translate, translated

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import MessageBlock, Source
    from headrace.ingest.kafka.settings import KafkaSettings


def membership(group: str | None, instance: str | None) -> dict[str, object]:
    """Return the part of a consumer's configuration that says what member it is of which group."""
    config: dict[str, object] = {
        "group.id": group or "headrace.reader",  # the client insists on one; it is not joined
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
        "session.timeout.ms": 6_000,  # so long are the partitions of a dead machine unread
        "heartbeat.interval.ms": 1_500,
    }


def member_of_instance(settings: KafkaSettings, group: str, instance: str) -> str | None:
    """Return which member of the group is `instance` now; None: none. Raises KafkaUnreachable."""
    with translated(f"asking for the members of {group}", settings.bootstrap):
        # a client that asked before may know the group's coordinator by a connection that is gone
        admin = AdminClient(settings.connection())
        asked = admin.describe_consumer_groups([group], request_timeout=settings.connect_timeout_s)
        described = asked[group].result()
    named = (each for each in described.members if each.group_instance_id == instance)
    return next((str(each.member_id) for each in named), None)


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


def resumes_at(block: MessageBlock, expected: int) -> bool:
    """Whether nothing in a block was delivered before: `expected` is the first that was not."""
    return bool(block.offsets[0] >= expected and (np.diff(block.offsets) > 0).all())
