"""Runs a dead letter retry that dies around its commit; arguments: bootstrap, topics, moment."""

import os
import signal
import sys
import threading
from typing import Any

import confluent_kafka

from headrace.ingest.dead_letters.letter import Letter
from headrace.ingest.dead_letters.letter_retry import retry
from headrace.ingest.dead_letters.reader import Choice
from headrace.ingest.kafka import transactions
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics

bootstrap, impressions, clicks, dead_letters, moment = sys.argv[1:]


class Dying(confluent_kafka.Producer):
    """A producer whose process dies just before or just after its commit."""

    def commit_transaction(self, *arguments: Any) -> None:
        self.flush(30)
        if moment == "after":
            super().commit_transaction(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)


def repaired(letter: Letter) -> dict[str, object]:
    """Repair every event with a time."""
    return {**(letter.event or {}), "timestamp_ms": 1_767_225_600_000}


if __name__ == "__main__":
    setattr(transactions, "Producer", Dying)  # noqa: B010 - not a name that it exports
    retry(
        KafkaSettings(bootstrap),
        repaired,
        Choice(),
        threading.Event(),
        EventTopics(impressions, clicks, dead_letters),
    )
