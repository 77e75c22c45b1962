"""The log of the Kafka client: levels that fit what a line means."""

import logging

import pytest

from headrace.ingest.kafka.client_log import client_log
from headrace.ingest.kafka.settings import KafkaSettings

ASKING = "GETPID [rdkafka#producer-15] [thrd:main]: Failed to acquire transactional PID from broker"


@pytest.mark.parametrize(
    "reason", ["Coordinator load in progress", "Not coordinator", "Coordinator not available"]
)
def test_a_producer_that_asks_again_for_its_id_is_no_warning(
    caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    with caplog.at_level(logging.INFO):
        client_log.warning("%s X/1: Broker: %s: retrying", ASKING, reason)
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG):
        client_log.warning("%s X/1: Broker: %s: retrying", ASKING, reason)
    assert [record.levelname for record in caplog.records] == ["DEBUG"]


@pytest.mark.parametrize(
    "message",
    [
        f"{ASKING} X/1: Broker: Cluster authorization failed",
        "FAIL [rdkafka#consumer-1] X/1: Connection refused",
        "REQTMOUT [rdkafka#producer-1] X/1: Timed out 1 in-flight requests: retrying",
    ],
)
@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR, logging.CRITICAL])
def test_any_other_trouble_of_the_client_is_a_warning(
    caplog: pytest.LogCaptureFixture, message: str, level: int
) -> None:
    with caplog.at_level(logging.INFO):
        client_log.log(level, message)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", message)
    ]


def test_clients_write_their_lines_to_this_log() -> None:
    assert KafkaSettings("localhost:1").connection()["logger"] is client_log
