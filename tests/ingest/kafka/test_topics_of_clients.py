"""Topics that clients created by writing to them: the refusal names the commands that help."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import EventTopics
from tests.deploy.command import GENEROUS_S, headrace, running
from tests.ingest.joiner.joined import Joined
from tests.ingest.keyed_events import FIELDS, MODEL, labels_of, send_by_key

PARTITIONS = "3"


def test_topics_that_clients_created_are_changed_by_the_commands_that_the_refusal_names(
    kafka: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    prefix, name = f"{fresh_name('found')}.", "news"
    admin = AdminClient({"bootstrap.servers": kafka})
    made = [NewTopic(f"{prefix}{each}", 1) for each in ("impressions", "clicks")]
    for future in admin.create_topics(made).values():
        future.result()
    spec = tmp_path / "news.toml"
    spec.write_text(MODEL.format(name=name) + FIELDS)
    common = ("--model", str(spec), "--kafka", kafka, "--topics-prefix", prefix)
    topics = ("ingest", "topics", *common, "--partitions", PARTITIONS)

    refused = headrace(*topics)
    said = " ".join(refused.stderr.split())
    assert refused.returncode == 2, said
    assert "topic impressions: expected 3 partitions, got 1" in said
    assert "topic clicks: expected message.timestamp.type=LogAppendTime, got CreateTime" in said
    assert "`headrace topics grow`" in said and "--change-settings" in said

    changed = headrace(*topics, "--change-settings")
    assert "topic clicks: message.timestamp.type=LogAppendTime, was CreateTime" in changed.stdout
    said = " ".join(changed.stderr.split())
    assert "LogAppendTime" not in said and "`headrace topics grow`" in said
    grown = headrace("topics", "grow", *common, "--partitions", PARTITIONS)
    assert grown.returncode == 0, grown.stderr
    checked = headrace(*topics, "--change-settings")
    assert checked.returncode == 0, checked.stderr
    assert "was" not in checked.stdout

    joined = Joined(
        KafkaSettings(kafka, names=TopicNames(prefix)), name, EventTopics(), FIELDS, int(PARTITIONS)
    )
    with running("ingest", "join", *common) as process:
        send_by_key(joined, shown=["seen"], clicked=["seen"])
        deadline_s = time.monotonic() + GENEROUS_S
        while ("seen", 1) not in labels_of(joined):
            assert process.process.poll() is None, process.output
            assert time.monotonic() < deadline_s, process.output
            time.sleep(0.5)
    assert labels_of(joined) == Counter({("seen", 0): 1, ("seen", 1): 1})
