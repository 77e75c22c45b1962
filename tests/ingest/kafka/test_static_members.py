"""A named member of a group that restarts gets its partitions back; the others keep theirs."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from headrace.ingest.kafka.protocols import PartitionAssigned, PartitionRevoked
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from tests.ingest.joiner.joined import DEADLINE_S

SESSION_S = 6.0
"""The session timeout of a named member: a longer absence gives its partitions away."""


class Member:
    """A named member, and what Kafka assigned to it and revoked from it."""

    def __init__(self, settings: KafkaSettings, group: str, topic: str, name: str) -> None:
        self.reader = KafkaReader(settings, group, [topic], name)
        self.held, self.revoked = set[int](), list[int]()

    def poll(self) -> None:
        for event in self.reader.poll(0.05):
            if isinstance(event, PartitionAssigned):
                self.held.add(event.source.partition)
                self.reader.start({event.source: 0})
            elif isinstance(event, PartitionRevoked):
                self.held.discard(event.source.partition)
                self.revoked.append(event.source.partition)


def test_a_named_member_that_restarts_gets_its_partitions_back_and_others_lose_none(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    settings, group, topic = KafkaSettings(kafka), fresh_name("group"), fresh_name("topic")
    ensure_topics(settings, [TopicSpec(topic, 4, {}, {})])
    with ExitStack() as stack:

        def joined(name: str) -> Member:
            member = Member(settings, group, topic, name)
            stack.enter_context(closing(member.reader))
            return member

        def wait(until: Callable[[], bool], *members: Member) -> None:
            deadline_s = time.monotonic() + DEADLINE_S
            while not until():
                assert time.monotonic() < deadline_s, [each.held for each in members]
                for each in members:
                    each.poll()

        other, member = joined("other"), joined("restarted")
        wait(lambda: len(member.held) == len(other.held) == 2, member, other)
        for _ in range(5):
            before, kept = set(member.held), set(other.held)
            other.revoked.clear()
            closed_s = time.monotonic()
            member.reader.close()
            member = joined("restarted")
            wait(lambda now=member, had=before: now.held == had, member, other)  # type: ignore[misc]
            if time.monotonic() - closed_s < SESSION_S / 2:  # else a busy machine, not a restart
                assert (other.held, other.revoked) == (kept, [])
                return
    pytest.skip("no restart took less than half of the session timeout: a busy machine")
