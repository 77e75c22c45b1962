"""Tests that messages and offsets are written together or not at all, on a real broker."""

import secrets
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.ingest.errors import Fenced, KafkaUnreachable, TransactionAborted, WriteRefused
from headrace.ingest.kafka.protocols import Committed, PartitionAssigned, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.offset_store import committed_offsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from tests.ingest.kafka.reader_events import poll_until


class Member:
    """A reader in a group, and its transactions."""

    def __init__(self, settings: KafkaSettings, group: str, source: Source, name: str) -> None:
        self.reader = KafkaReader(settings, group, [source.topic])
        poll_until(self.reader, lambda happened: PartitionAssigned(source) in happened)
        self.transactions = KafkaTransactions(settings, f"{group}.{name}", self.reader)

    def close(self) -> None:
        self.transactions.close()
        self.reader.close()


@pytest.fixture
def source(settings: KafkaSettings, fresh_name: Callable[[str], str]) -> Source:
    topic = fresh_name("topic")
    ensure_topics(settings, [TopicSpec(topic, 1, {"max.message.bytes": "10000"})])
    return Source(topic, 0)


@pytest.fixture
def group(fresh_name: Callable[[str], str]) -> str:
    return fresh_name("group")


@pytest.fixture
def member(settings: KafkaSettings, source: Source, group: str) -> Iterator[Member]:
    member = Member(settings, group, source, "one")
    yield member
    member.close()


def written(settings: KafkaSettings, source: Source) -> list[bytes]:
    return [record.value for record in read_all(settings, source.topic)]


def test_a_transaction_writes_messages_and_offsets_together(
    settings: KafkaSettings, source: Source, member: Member
) -> None:
    assert member.transactions.committed([source]) == {}
    for i in range(3):
        message = Outgoing(source, str(i).encode())
        member.transactions.write([message], {source: Committed(i + 1, f"state {i}")})
    assert written(settings, source) == [b"0", b"1", b"2"]
    assert member.transactions.committed([source]) == {source: Committed(3, "state 2")}


def test_a_refused_message_aborts_its_transaction_with_the_reason(
    settings: KafkaSettings, source: Source, member: Member
) -> None:
    too_large = Outgoing(source, secrets.token_bytes(20_000))
    with pytest.raises(WriteRefused, match=source.topic):
        member.transactions.write([Outgoing(source, b"a"), too_large], {source: Committed(1, "")})
    assert written(settings, source) == []
    assert member.transactions.committed([source]) == {}
    member.transactions.write([Outgoing(source, b"b")], {source: Committed(1, "")})
    assert written(settings, source) == [b"b"]


def test_a_producer_with_the_same_transactional_id_fences_its_predecessor(
    settings: KafkaSettings, source: Source, group: str, member: Member
) -> None:
    member.transactions.write([Outgoing(source, b"a")], {source: Committed(1, "")})
    successor = KafkaTransactions(settings, f"{group}.one", member.reader)
    with pytest.raises(Fenced):
        member.transactions.write([Outgoing(source, b"b")], {source: Committed(2, "")})
    assert successor.committed([source]) == {source: Committed(1, "")}
    successor.write([Outgoing(source, b"c")], {source: Committed(2, "")})
    assert written(settings, source) == [b"a", b"c"]
    successor.close()


class Unstable:
    """A consumer whose answer has an error for the offset of one source."""

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[SimpleNamespace]:
        assert timeout > 0
        error = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
        offsets = {0: (12, None), 1: (OFFSET_INVALID, None), 2: (OFFSET_INVALID, error)}
        found = [(each, *offsets[each.partition]) for each in asked]
        return [
            SimpleNamespace(
                topic=each.topic,
                partition=each.partition,
                offset=at,
                metadata="m",
                error=why,
                leader_epoch=None,
            )
            for each, at, why in found
        ]


def test_an_offset_with_an_error_is_not_read_as_uncommitted() -> None:
    settings, consumer = KafkaSettings("a:1"), cast("Consumer", Unstable())
    sources = [Source("topic", partition) for partition in range(3)]
    assert committed_offsets(consumer, settings, sources[:2]) == {sources[0]: (12, "m", -1)}
    with pytest.raises(KafkaUnreachable, match=r"topic/2.*UNSTABLE_OFFSET_COMMIT"):
        committed_offsets(consumer, settings, sources)


class AbortedMeanwhile:
    """A reader whose membership is returned only after Kafka has aborted the transaction."""

    def __init__(self, reader: KafkaReader, source: Source) -> None:
        self._reader, self._source = reader, source
        self.committed = reader.committed

    def group_metadata(self) -> object:
        deadline_s = time.monotonic() + 30.0
        while self._reader.bounds(self._source) != (
            0,
            2,
        ):  # the message and the marker of its abort
            assert time.monotonic() < deadline_s
        return self._reader.group_metadata()


def test_a_transaction_ended_by_its_timeout_is_not_reported_as_fenced(
    settings: KafkaSettings,
    source: Source,
    group: str,
    member: Member,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.ingest.kafka.transactions.TRANSACTION_TIMEOUT_MS", 1_000)
    slow = KafkaTransactions(settings, f"{group}.slow", AbortedMeanwhile(member.reader, source))
    with pytest.raises(KafkaUnreachable, match=r"took \d+ s, and Kafka ended it"):
        slow.write([Outgoing(source, b"a")], {source: Committed(1, "")})
    slow._offsets = member.reader
    slow.write([Outgoing(source, b"b")], {source: Committed(1, "")})
    assert written(settings, source) == [b"b"]
    slow.close()


def test_a_member_that_left_its_group_cannot_commit_offsets(
    settings: KafkaSettings, source: Source, group: str, member: Member
) -> None:
    stale = member.reader.group_metadata()
    member.reader.close()
    heir = Member(settings, group, source, "two")
    heir.transactions.write([Outgoing(source, b"heir")], {source: Committed(7, "heir")})
    member.transactions._offsets = Zombie(stale)  # type: ignore[assignment]
    with pytest.raises(TransactionAborted):
        member.transactions.write([Outgoing(source, b"late")], {source: Committed(2, "late")})
    assert written(settings, source) == [b"heir"]
    assert heir.transactions.committed([source]) == {source: Committed(7, "heir")}
    heir.close()


def membership_that_ended(settings: KafkaSettings, source: Source) -> object:
    """The metadata of a member of another group."""
    other = Member(settings, f"{source.topic}.other", source, "other")
    stale = other.reader.group_metadata()
    other.close()
    return stale


class Zombie:
    """A reader with the membership of a member that has left."""

    def __init__(self, metadata: object) -> None:
        self._metadata = metadata

    def group_metadata(self) -> object:
        return self._metadata


def test_the_producer_of_an_aborted_transaction_cannot_commit_offsets_later(
    settings: KafkaSettings, source: Source, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests may be late: frozen connections deliver them during the next transaction."""
    members, aborted = member.transactions._offsets, member.transactions._producer
    assert aborted is not None
    with monkeypatch.context() as frozen:
        frozen.setattr(member.transactions, "_close", lambda _: None)
        member.transactions._offsets = Zombie(membership_that_ended(settings, source))  # type: ignore[assignment]
        with pytest.raises(TransactionAborted):
            member.transactions.write([Outgoing(source, b"a")], {source: Committed(1, "")})
    member.transactions._offsets = members
    member.transactions.write([Outgoing(source, b"b")], {source: Committed(1, "b")})
    late = TopicPartition(source.topic, source.partition, 9)
    aborted.begin_transaction()
    with pytest.raises(KafkaException, match="fenced"):
        aborted.send_offsets_to_transaction([late], members.group_metadata(), 10)
    assert written(settings, source) == [b"b"]
    assert member.transactions.committed([source]) == {source: Committed(1, "b")}
