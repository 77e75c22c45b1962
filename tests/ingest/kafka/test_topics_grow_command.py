"""`headrace topics grow` as a command, on a real Kafka, beside a joiner.

Topics that a client created by writing to them have one partition and the settings of the broker.
"""

from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, partition_counts, topics_for
from tests.deploy.command import running
from tests.deploy.in_process import Commands, headrace
from tests.ingest.joiner.joined import Joined
from tests.ingest.keyed_events import MODEL, labels_of, send_by_key

__all__ = ["headrace"]

AFTER = 6
FIELDS = """
[fields.article]
number = 1
transform = "id"
[label]
policy = "immediate"
window_s = 1
"""


def test_an_event_in_a_topic_that_its_producer_created_is_joined_once_after_a_growth(
    headrace: Commands, kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix, name = f"{fresh_name('auto')}.", "news"
    settings = KafkaSettings(kafka, names=TopicNames(prefix))
    joined = Joined(settings, name, EventTopics(), FIELDS, AFTER)
    admin = AdminClient(settings.connection())
    created = admin.create_topics([NewTopic(f"{prefix}impressions", 1, 1)])
    created[f"{prefix}impressions"].result()
    spec = tmp_path / "news.toml"
    spec.write_text(MODEL.format(name=name) + FIELDS)
    common = ("--model", str(spec), "--kafka", kafka, "--topics-prefix", prefix)
    send_by_key(joined, shown=["first"])

    refused = headrace("ingest", "topics", *common, "--partitions", str(AFTER))
    assert refused.code == 2
    assert "topic impressions: expected 6 partitions, got 1" in refused.err
    assert "`headrace ingest topics --partitions 1`" in refused.err
    assert "`headrace topics grow`" in refused.err
    assert set(partition_counts(settings)) == {"impressions"}, "a refusal creates nothing"
    grown = headrace("topics", "grow", *common, "--partitions", str(AFTER))
    assert grown.code == 2
    assert "--partitions 1` creates them" in grown.err

    made = headrace("ingest", "topics", *common, "--partitions", "1", "--change-settings")
    assert made.code == 0, made.err
    assert "topic impressions: message.timestamp.type=LogAppendTime, was CreateTime" in made.out
    with running("ingest", "join", *common):
        grown = headrace("topics", "grow", *common, "--partitions", str(AFTER))
        assert grown.code == 0, grown.out + grown.err
    assert "next: restart the producers" in grown.out
    checked = headrace("ingest", "topics", *common, "--partitions", str(AFTER), "--change-settings")
    assert checked.code == 0, checked.err
    assert "was" not in checked.out
    assert partition_counts(settings, ["impressions", "clicks"]) == {
        "impressions": AFTER,
        "clicks": AFTER,
    }
    assert labels_of(joined) == {("first", 0): 1}


def test_a_growth_that_no_joiner_can_prepare_is_refused(
    headrace: Commands, kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix, name = f"{fresh_name('parted')}.", "news"
    settings = KafkaSettings(kafka, names=TopicNames(prefix))
    joined = Joined(settings, name, EventTopics(), FIELDS, AFTER)
    ensure_topics(settings, [t for t in topics_for(name, AFTER) if t.name != "clicks"])
    ensure_topics(settings, [t for t in topics_for(name, 1) if t.name == "clicks"])
    spec = tmp_path / "news.toml"
    spec.write_text(MODEL.format(name=name) + FIELDS)
    send_by_key(joined, clicked=["first"])
    grow = ("topics", "grow", "--model", str(spec), "--kafka", kafka, "--topics-prefix", prefix)
    refused = headrace(*grow, "--partitions", str(AFTER))
    assert refused.code == 2
    assert "1 event to join" in refused.err
    assert "impressions 6, clicks 1" in refused.err
    grown = headrace(*grow, "--partitions", str(AFTER), "--accept-unmatched")
    assert grown.code == 0, grown.out + grown.err
