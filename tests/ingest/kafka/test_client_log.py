"""The log of the Kafka client: lines of a normal start are left out, others are not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.ingest.kafka.settings import log

if TYPE_CHECKING:
    import pytest


def test_a_start_does_not_warn_of_a_coordinator_that_loads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = "GETPID [rdkafka#producer-15] [thrd:main]: Failed to acquire transactional PID from "
    with caplog.at_level(logging.WARNING):
        log.warning("%sbroker X/1: Broker: Coordinator load in progress: retrying", failed)
        log.warning("%sbroker X/1: Broker: Cluster authorization failed", failed)
    assert [record.getMessage() for record in caplog.records] == [
        f"{failed}broker X/1: Broker: Cluster authorization failed"
    ]
