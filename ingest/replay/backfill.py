"""Refuses a replay of old events into topics that have newer ones.

A joiner's clock is event time. Events that are older than what it has joined are dead letters
(`too_late`), for every model that reads these topics. So a log of the past belongs into a Kafka of
its own, where it comes first.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from headrace.ingest.errors import BackfillRefused
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import last_records
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, partition_counts
from headrace.ingest.logs.ndjson import EventLog, event_time_ms

ANOTHER_KAFKA = "Replay the log into a Kafka of its own, or add --onto-newer"


def check_backfill(
    kafka: KafkaSettings,
    logs: Iterable[EventLog],
    window_ms: int,
    topics: EventTopics | None = None,
    advice: str = ANOTHER_KAFKA,
) -> None:
    """Raise BackfillRefused if the topics have events more than `window_ms` after the first one.

    advice: the end of the message, which says what to do.
    """
    newest_ms = _newest_ms(kafka, topics or EventTopics())
    if not newest_ms:
        return  # without a look at the logs, which may have to be sorted first
    first_ms = next((line.time_ms for log in logs for line in log.lines() if line.time_ms), None)
    if first_ms is not None:
        refuse_older(first_ms, newest_ms, window_ms, advice)


def refuse_older(
    first_ms: int, newest_ms: Mapping[str, int], window_ms: int, advice: str = ANOTHER_KAFKA
) -> None:
    """Raise BackfillRefused if a topic has an event more than `window_ms` after `first_ms`."""
    for topic, last_ms in newest_ms.items():
        if last_ms > first_ms + window_ms:
            raise BackfillRefused(
                f"expected events after those of topic {topic}, which reach {_named(last_ms)}, got "
                f"a log that begins at {_named(first_ms)}: joiners would make dead letters of them "
                f"(too_late). {advice}"
            )


def _newest_ms(kafka: KafkaSettings, topics: EventTopics) -> dict[str, int]:
    """Return the time of the newest of the last events of each topic's partitions."""
    newest: dict[str, int] = {}
    for topic, count in partition_counts(kafka, [topics.impressions, topics.clicks]).items():
        last = last_records(kafka, [Source(topic, number) for number in range(count)])
        for record in last.values():
            if (time_ms := event_time_ms(record.value)) is not None:
                newest[topic] = max(newest.get(topic, 0), time_ms)
    return newest


def _named(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
