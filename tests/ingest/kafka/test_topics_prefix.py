"""Tests the prefix of an environment's names: its mapping, and two environments on one Kafka."""

import ast
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.ingest.errors import KafkaRefused, MissingTopic
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics, grow_topics, partition_counts
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing

LEGAL = st.text("abcXYZ019._-", max_size=12)


@given(LEGAL, st.text("abc._-", min_size=1), st.integers(0, 9))
def test_a_name_comes_back_from_kafka_as_the_processes_wrote_it(
    prefix: str, name: str, number: int
) -> None:
    names = TopicNames(prefix)
    physical = names.physical(name)
    assert names.logical(physical) == name
    assert names.own([physical]) == [name]
    assert names.source(TopicPartition(physical, number)) == Source(name, number)


@given(LEGAL, st.sets(st.text("abc._-", min_size=1)))
def test_no_two_names_of_an_environment_meet_in_kafka(prefix: str, names: set[str]) -> None:
    assert len({TopicNames(prefix).physical(name) for name in names}) == len(names)


@given(st.sets(st.text("abc", min_size=1), min_size=2, max_size=5), st.sets(LEGAL))
def test_environments_whose_prefixes_end_alike_own_disjoint_names(
    teams: set[str], names: set[str]
) -> None:
    prefixes = [TopicNames(f"{team}.") for team in sorted(teams)]
    in_kafka = [each.physical(name) for each in prefixes for name in names]
    for each in prefixes:
        assert sorted(each.own(in_kafka)) == sorted(names)


@given(st.text())
def test_an_empty_prefix_changes_no_name(name: str) -> None:
    names = TopicNames()
    assert (names.physical(name), names.logical(name), names.own([name])) == (name, name, [name])


@pytest.mark.parametrize("prefix", ["team a.", "team/a", "équipe.", "a\n", "{a}", "a:"])
def test_a_prefix_that_kafka_does_not_allow_is_refused_by_name(prefix: str) -> None:
    with pytest.raises(KafkaRefused, match="--topics-prefix / HEADRACE_TOPICS_PREFIX: expected"):
        TopicNames(prefix)


def test_a_prefix_that_leaves_no_room_for_a_topic_is_refused() -> None:
    with pytest.raises(KafkaRefused, match="at most 100 characters, got 101: choose a shorter"):
        TopicNames("a" * 101)
    names = TopicNames("a" * 100)
    assert len(names.physical_topic("b" * 149)) == 249
    with pytest.raises(KafkaRefused, match="at most 249 characters, got 250"):
        names.physical_topic("b" * 150)


def test_two_environments_on_one_kafka_share_no_record_no_offset_and_no_transaction(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    team = fresh_name("team")
    one, other = (KafkaSettings(kafka, names=TopicNames(f"{team}-{c}.")) for c in "ab")
    topic, group = "impressions", "headrace.m.joiner"
    for settings in (one, other):
        ensure_topics(settings, [TopicSpec(topic, 2)])
        assert partition_counts(settings) == {topic: 2}
    with closing(KafkaWriter(one)) as writer:
        writer.send(Source(topic, 1), b"event", b"key")
    offsets = [KafkaOffsets(settings, group) for settings in (one, other)]
    writers = [
        KafkaTransactions(settings, f"{group}.0", held)
        for settings, held in zip((one, other), offsets, strict=True)
    ]
    # the first one is fenced if the other has the same transactional id
    position = {Source(topic, 1): Committed(1, "checkpoint")}
    writers[0].write([Outgoing(Source(topic, 0), b"output")], position)
    assert writers[0].committed(position) == position
    assert writers[1].committed(position) == {}
    assert {record.value for record in read_all(one, topic)} == {b"output", b"event"}
    assert list(read_all(other, topic)) == []
    for writing in writers:
        writing.close()
    for held in offsets:
        held.close()
    admin = AdminClient({"bootstrap.servers": kafka})
    found = admin.list_topics(timeout=10).topics
    assert {name for name in found if name.startswith(team)} == {
        f"{team}-a.{topic}",
        f"{team}-b.{topic}",
    }
    assert grow_topics(one, [topic], 3) == [topic]
    assert (partition_counts(one), partition_counts(other)) == ({topic: 3}, {topic: 2})


def test_a_reader_without_the_prefix_finds_no_topic(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("shown")
    ensure_topics(KafkaSettings(kafka, names=TopicNames("team-a.")), [TopicSpec(topic, 1)])
    with pytest.raises(MissingTopic, match=f"got no {topic}"):
        KafkaReader(KafkaSettings(kafka), None, [topic])
    with pytest.raises(MissingTopic, match=f"got no team-b.{topic}"):
        KafkaReader(KafkaSettings(kafka, names=TopicNames("team-b.")), None, [topic])


NAMING = {"TopicPartition", "NewTopic", "NewPartitions", "produce", "produce_batch", "subscribe"}
"""Calls of the client whose first argument names topics."""
PHYSICAL = re.compile(r"physical|partition_of|\bp\.topic\b|^topics?$")


def test_every_call_of_the_client_names_topics_with_the_prefix() -> None:
    found = 0
    for path in sorted(Path(headrace.__file__).parent.glob("*/**/*.py")):
        text = path.read_text()
        if "from confluent_kafka import" not in text:
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            if name not in NAMING or not call.args:
                continue
            found += 1
            named = ast.unparse(call.args[0])
            where = f"{path.name}:{call.lineno}: {ast.unparse(call)}"
            assert PHYSICAL.search(named), f"expected a name from TopicNames.physical: {where}"
            if named in ("topic", "topics"):  # a local of that name holds the physical one
                assert re.search(rf"\b{named} = .*physical\(|in physical$", text, re.MULTILINE), (
                    where
                )
    assert found > 10
