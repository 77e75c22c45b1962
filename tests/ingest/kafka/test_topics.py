"""Tests topics with an operator's settings: harmful ones are refused, other ones reported."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from headrace.ingest.errors import TopicMismatch
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka import topics
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    FOREVER_MS,
    EventTopics,
    TopicSpec,
    ensure_topics,
    read_retention,
    topics_for,
)
from tests.ingest.joiner.partition import fields_of


def test_changed_topic_settings_are_reported_and_too_few_replicas_are_refused(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings = KafkaSettings(kafka)
    names = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    wanted = topics_for(fresh_name("model"), 1, names, replicas=1)
    shown = wanted[0]
    chosen = {"retention.ms": "3600000", "compression.type": "zstd"}
    ensure_topics(settings, [replace(shown, preferred=chosen)])
    reported = ensure_topics(settings, wanted)
    assert reported == [
        f"topic {shown.name}: compression.type=zstd, headrace's default is producer",
        f"topic {shown.name}: retention.ms=3600000, headrace's default is 604800000",
    ]
    more = f"topic {shown.name}: expected 3 replicas, got 1"
    with pytest.raises(TopicMismatch, match=more):
        ensure_topics(settings, [replace(shown, replicas=3)])


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        (0, "message.timestamp.type", "CreateTime"),
        (1, "cleanup.policy", "compact"),
        (3, "cleanup.policy", "compact,delete"),
        (3, "max.message.bytes", "1048588"),
    ],
)
def test_a_joiner_refuses_a_topic_whose_settings_were_changed(
    kafka: str, fresh_name: Callable[[str], str], place: int, key: str, value: str
) -> None:
    settings, model, stop = KafkaSettings(kafka), fresh_name("model"), threading.Event()
    names = EventTopics(*(fresh_name(stem) for stem in ("shown", "clicked", "dead")))
    specs = list(topics_for(model, 1, names, replicas=1))
    required = {**specs[place].required, key: value}
    ensure_topics(settings, [*specs[:place], replace(specs[place], required=required)])
    ensure_topics(settings, specs[place + 1 :])
    stop.set()
    with pytest.raises(TopicMismatch, match=f"topic {specs[place].name}: .*{key}=.*got {value}"):
        run_joiner(JoinerSettings(topics=names), settings, model, fields_of(), stop)


def test_topics_with_three_replicas_need_two_in_sync() -> None:
    of_three, of_one = topics_for("model", replicas=3), topics_for("model", replicas=1)
    assert {spec.preferred["min.insync.replicas"] for spec in of_three} == {"2"}
    assert {spec.replicas for spec in of_three} == {3}
    assert not any("min.insync.replicas" in spec.preferred for spec in of_one)


def test_retention_is_that_of_the_topics_and_of_committed_offsets(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings = KafkaSettings(kafka)
    kept, forever, compacted = (fresh_name(stem) for stem in ("kept", "forever", "compacted"))
    ensure_topics(
        settings,
        [
            TopicSpec(kept, 1, {"cleanup.policy": "delete"}, {"retention.ms": "1234567"}),
            TopicSpec(forever, 1, {"retention.ms": "-1"}),
            TopicSpec(compacted, 1, {"cleanup.policy": "compact"}),
        ],
    )
    found = read_retention(settings, [kept, forever, compacted, "missing"])
    assert found.topics_ms == {kept: 1_234_567, forever: FOREVER_MS, compacted: FOREVER_MS}
    assert found.offsets_ms == 7 * 24 * 3600 * 1000


def test_a_new_topic_is_awaited_at_a_broker_that_does_not_have_it_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker that leads a partition may be behind the broker that created the topic."""
    unknown = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    asked: list[TopicPartition] = []

    class Brokers:
        def __init__(self, _settings: object) -> None: ...

        def create_topics(self, new: list[NewTopic], **_: object) -> dict[str, Future[None]]:
            return {topic.topic: _ended() for topic in new}

        def list_offsets(
            self, wanted: dict[TopicPartition, object], **_: object
        ) -> dict[TopicPartition, Future[None]]:
            asked.extend(wanted)
            return {each: _ended(unknown if len(asked) < 3 else None) for each in wanted}

    monkeypatch.setattr(topics, "AdminClient", Brokers)
    spec = topics.TopicSpec("new", 1)
    topics._create(KafkaSettings("nowhere:9"), Brokers(None), [spec])  # type: ignore[arg-type]
    assert len(asked) == 3


def _ended(error: Exception | None = None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future
