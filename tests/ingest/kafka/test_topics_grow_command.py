"""`headrace topics grow` as a command, on a real Kafka: running models, and every example once."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import EventTopics, ensure_topics, partition_counts, topics_for
from tests.deploy.command import GENEROUS_S, headrace, running
from tests.ingest.joiner.joined import Joined
from tests.ingest.keyed_events import MODEL, identities, labels_of, send_by_key

BEFORE, AFTER = 2, 6
FIELDS = """
[fields.article]
number = 1
transform = "id"
[label]
policy = "immediate"
window_s = 1
"""


def test_the_command_grows_the_topics_under_a_joiner_and_every_example_is_made_once(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix, name = f"{fresh_name('grown')}.", "news"
    settings = KafkaSettings(kafka, names=TopicNames(prefix))
    joined = Joined(settings, name, EventTopics(), FIELDS, BEFORE)
    ensure_topics(settings, topics_for(name, BEFORE, joined.topics))
    spec = tmp_path / "news.toml"
    spec.write_text(MODEL.format(name=name) + FIELDS)
    common = ("--model", str(spec), "--kafka", kafka, "--topics-prefix", prefix)
    old, new = identities("old", 300), identities("new", 900)

    def wait_for(shown: list[str]) -> None:
        deadline_s = time.monotonic() + GENEROUS_S
        while {identity for identity, _ in labels_of(joined)} < set(shown):
            assert process.process.poll() is None, process.output
            assert time.monotonic() < deadline_s, process.output
            time.sleep(0.5)

    with running("ingest", "join", *common) as process:
        send_by_key(joined, shown=old)
        wait_for(old)
        grown = headrace("topics", "grow", *common, "--partitions", str(AFTER))
        assert grown.returncode == 0, grown.stdout + grown.stderr
        for topic in ("impressions", "clicks", "examples.news", "scores.news"):
            assert f"{topic}: {AFTER} partitions" in grown.stdout
        assert "next: restart the producers" in grown.stdout
        assert "warning" not in grown.stdout
        send_by_key(joined, shown=new)
        wait_for([*old, *new])
    assert labels_of(joined) == Counter((identity, 0) for identity in [*old, *new])
    assert {partition for partition, *_ in joined.examples()} == set(range(AFTER))
    names = [each.name for each in topics_for(name, BEFORE, joined.topics)]
    assert sorted(partition_counts(settings, names).values()) == [1, 1, *[AFTER] * 4]
