"""The rehearsal of a broker makes real transactions and leaves nothing behind."""

import time

import pytest
from confluent_kafka.admin import AdminClient

from headrace.ingest.broker_rehearsal import BrokerRehearsal
from headrace.ingest.kafka.settings import KafkaSettings


def wait_for_deletion(settings: KafkaSettings, name: str) -> None:
    """Wait until the broker no longer lists a topic: it learns of a deletion a moment later."""
    admin, deadline_s = AdminClient(settings.connection()), time.monotonic() + 60.0
    while name in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline_s, f"{name} is still listed"


def test_a_rehearsal_commits_its_transactions_and_deletes_its_topic_and_group(kafka: str) -> None:
    settings = KafkaSettings(kafka)
    rehearsal = BrokerRehearsal(settings, transactions=3)
    rehearsal.start()
    rehearsal.wait()
    assert rehearsal.done == 3
    wait_for_deletion(settings, rehearsal.name)
    groups = AdminClient(settings.connection()).list_consumer_groups().result()
    assert rehearsal.name not in {group.group_id for group in groups.valid}


def test_a_rehearsal_that_is_stopped_ends_early_and_deletes_its_topic(kafka: str) -> None:
    settings = KafkaSettings(kafka)
    with BrokerRehearsal(settings, transactions=1_000_000) as rehearsal:
        pass
    assert rehearsal.done < 1_000_000
    wait_for_deletion(settings, rehearsal.name)


def test_a_rehearsal_without_a_broker_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rehearsal = BrokerRehearsal(KafkaSettings("127.0.0.1:1", connect_timeout_s=0.2))
    rehearsal.start()
    rehearsal.wait()
    assert rehearsal.done == 0
    assert "no rehearsal of Kafka's transactions" in caplog.text
