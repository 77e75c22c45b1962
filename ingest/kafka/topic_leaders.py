"""Waits for the leaders of new partitions.

Kafka reports that a topic is made before its partitions can be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.error_translation import answer_of, translated
from headrace.ingest.kafka.retry import retry_for

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings

_NOT_YET = (
    KafkaError._NOENT,  # noqa: SLF001  ("no leaders found", of a topic deleted and recreated)
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # from a broker that other brokers are ahead of
)


def await_leaders(settings: KafkaSettings, counts: Mapping[str, int]) -> None:
    """Wait until every partition has a leader that answers.

    Leaders are elected after the answer; a broker that has just started takes its time.
    """
    retry_for(4 * settings.connect_timeout_s)(_ask_leaders, settings, counts)


def _ask_leaders(settings: KafkaSettings, counts: Mapping[str, int]) -> None:
    """Return if every partition has a leader that answers; Kafka reports creation before that.

    Uses a client of its own, because a client that asked too early remembers a missing leader.
    """
    admin = AdminClient(settings.connection())
    partitions = [
        TopicPartition(settings.names.physical(topic), partition)
        for topic, count in counts.items()
        for partition in range(count)
    ]
    at_end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    with translated("waiting for new topics", settings.bootstrap):
        futures = admin.list_offsets(
            dict.fromkeys(partitions, at_end), request_timeout=settings.connect_timeout_s
        )
        for answer in futures.values():
            try:
                answer_of(answer)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET:
                    raise
                raise KafkaUnreachable(f"no leader yet: {error.args[0].str()}") from error
