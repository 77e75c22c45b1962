"""Errors of Kafka name the address, topic or setting at fault."""

import secrets
import time
from collections.abc import Callable

import confluent_kafka
import pytest

from headrace.ingest.errors import (
    KafkaRefused,
    KafkaUnreachable,
    MissingTopic,
    TopicMismatch,
    WriteRefused,
)
from headrace.ingest.kafka.producer import BY_KEY, KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    STATUS_TOPIC,
    EventTopics,
    TopicSpec,
    check_co_partitioned,
    ensure_topics,
    topics_for,
)
from tests.ingest.kafka.made_topics import DEADLINE_S, make_topic

FreshName = Callable[[str], str]


def test_a_wrong_kafka_address_is_refused_with_its_name() -> None:
    nowhere = KafkaSettings("127.0.0.1:9", connect_timeout_s=1.0)
    for connect in (
        lambda: KafkaReader(nowhere, "group", ["topic"]),
        lambda: KafkaWriter(nowhere),
        lambda: ensure_topics(nowhere, topics_for("model")),
        lambda: list(read_all(nowhere, "topic")),
    ):
        with pytest.raises(KafkaUnreachable, match=r"127\.0\.0\.1:9: .*--kafka.*HEADRACE_KAFKA"):
            connect()


def test_the_error_for_a_missing_topic_names_it(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    missing = fresh_name("missing")
    with pytest.raises(MissingTopic, match=missing):
        KafkaReader(settings, "group", [missing])


def test_client_settings_that_exactly_once_depends_on_are_refused() -> None:
    with pytest.raises(KafkaRefused, match=r"acks, isolation\.level"):
        KafkaSettings("a:1", client={"isolation.level": "read_uncommitted", "acks": "0"})
    assert (
        KafkaSettings("a:1", client={"security.protocol": "SSL"}).connection()["security.protocol"]
        == "SSL"
    )


# -------------------------------------------------------------------- writer


def test_keyed_messages_go_to_the_partition_of_their_murmur2_hash(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    topics = [make_topic(settings, fresh_name("topic"), 4) for _ in range(2)]
    writer = KafkaWriter(settings)
    for topic in topics:
        for i in range(50):
            writer.send(Source(topic, BY_KEY), str(i).encode(), str(i).encode())
    writer.close()
    for topic in topics:
        placed = {record.value: record.source.partition for record in read_all(settings, topic)}
        assert placed == {
            str(i).encode(): confluent_kafka.murmur2(str(i).encode(), 4) for i in range(50)
        }


@pytest.mark.parametrize("flushes", [True, False])
def test_a_writer_raises_the_error_of_a_refused_message_at_its_next_call(
    settings: KafkaSettings, fresh_name: FreshName, *, flushes: bool
) -> None:
    topic = fresh_name("narrow")
    ensure_topics(settings, [TopicSpec(topic, 1, {"max.message.bytes": "10000"})])
    writer = KafkaWriter(settings)
    # above the topic's limit but not the client's, and random, so compression does not help
    writer.send(Source(topic, 0), secrets.token_bytes(20_000))

    def send_on() -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            writer.send(Source(topic, 0), b"after")
            # slow enough that the queue never fills: send polls the client when it is full
            time.sleep(0.01)

    with pytest.raises(WriteRefused, match=topic):
        writer.flush() if flushes else send_on()
    with pytest.raises(WriteRefused):
        writer.send(Source(topic, 0), b"after")
    with pytest.raises(WriteRefused):
        writer.close()


# -------------------------------------------------------------------- topics


def test_topics_are_created_once_and_verified_afterwards(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    events = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    specs = topics_for(fresh_name("model"), 3, events)
    ensure_topics(settings, specs)
    ensure_topics(settings, specs)
    alone = (events.dead_letters, STATUS_TOPIC)
    names = [spec.name for spec in specs if spec.name not in alone]
    assert check_co_partitioned(settings, names) == 3


def test_a_topic_with_other_settings_is_refused_with_each_difference(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    name = fresh_name("shown")
    ensure_topics(settings, [TopicSpec(name, 2)])
    wanted = TopicSpec(name, 3, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(TopicMismatch) as raised:
        ensure_topics(settings, [wanted])
    assert f"topic {name}: expected 3 partitions, got 2" in str(raised.value)
    assert "expected message.timestamp.type=LogAppendTime, got CreateTime" in str(raised.value)


def test_topics_with_different_partition_counts_are_refused_with_the_counts(
    settings: KafkaSettings, fresh_name: FreshName
) -> None:
    shown = make_topic(settings, fresh_name("shown"), 2)
    clicked = make_topic(settings, fresh_name("clicked"), 3)
    with pytest.raises(TopicMismatch, match=f"got {shown} 2, {clicked} 3"):
        check_co_partitioned(settings, [shown, clicked])
    with pytest.raises(MissingTopic, match="got no absent"):
        check_co_partitioned(settings, [shown, "absent"])
