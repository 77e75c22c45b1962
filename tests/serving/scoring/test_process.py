"""`headrace serving score` with a real Kafka: kills, and every impression once."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from tests.deploy.command import running
from tests.serving.replicas.snapshots import learned, snapshot_of
from tests.serving.served_models import NOW_MS, eventually, news

IMPRESSIONS = 12_000
"""Several polls: the kill comes between them, or in a transaction."""
PARTITIONS = 2


def test_scorers_that_are_killed_score_every_impression_exactly_once(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    settings = KafkaSettings(kafka)
    name, topic, scores = fresh_name("model"), fresh_name("shown"), fresh_name("scored")
    ensure_topics(settings, [TopicSpec(topic, PARTITIONS)])
    manifest = snapshot_of(learned(news()), tmp_path)
    model = ("--snapshot", f"{name}={tmp_path}", "--kafka", kafka)
    run = ("serving", "score", *model, "--from", topic, "--to", scores)

    def written() -> list[str]:
        return [json.loads(each.value)["impression_id"] for each in read_all(settings, scores)]

    produce(settings, topic, 0, IMPRESSIONS)
    with running(*run) as first:
        first.wait_for("scoring .* into")
        eventually(written, within_s=60)
        produce(settings, topic, IMPRESSIONS, 2 * IMPRESSIONS)
        first.process.kill()  # with the last of them hardly in Kafka, it is at work
    before = len(written())
    with running(*run) as second:
        eventually(lambda: len(written()) >= 2 * IMPRESSIONS, within_s=90)
        second.process.terminate()
        assert second.end() == 0, second.output
    names = written()
    assert len(names) == len(set(names)) == 2 * IMPRESSIONS, f"{before} before the kill"
    record = next(iter(read_all(settings, scores)))
    message = json.loads(record.value)
    assert record.key == message["impression_id"].encode()
    assert (message["model"], message["snapshot"]) == (name, manifest.name)
    letters = [json.loads(each.value) for each in read_all(settings, "dead-letters")]
    ours = [each for each in letters if each.get("topic") == topic]
    assert len(ours) == 2 and {each["value"] for each in ours} == {"not an event"}


def produce(settings: KafkaSettings, topic: str, first: int, end: int) -> None:
    """Impressions, and an invalid message."""
    writer = KafkaWriter(settings)
    for i in range(first, end):
        event = {"impression_id": f"i{i}", "timestamp_ms": NOW_MS, "article_id": f"a{i % 50}"}
        writer.send(Source(topic, i % PARTITIONS), msgspec.json.encode(event), f"i{i}".encode())
    writer.send(Source(topic, 0), b"not an event")
    writer.close()
