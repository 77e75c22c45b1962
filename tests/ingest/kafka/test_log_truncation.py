"""A broker that loses the end of a log and appends to it again, on a real Kafka."""

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from headrace.deploy.local.services.kafka import KafkaNode
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Committed, ReadPosition, Record, Source
from headrace.ingest.kafka.reading.bounded_reader import high_watermarks, read_until
from headrace.ingest.kafka.reading.log_bounds import log_offsets
from headrace.ingest.kafka.reading.log_truncation import LogState, log_states, truncated
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions
from tests.running_server import jars, running_server

SOURCE, OTHER = Source("events", 0), Source("events", 1)
MARKED = Source("marked", 0)


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    """A broker of these tests alone."""
    with running_server(KafkaNode(tmp_path_factory.mktemp("kafka"), jars())) as node:
        yield node


def _write(settings: KafkaSettings, source: Source, count: int) -> None:
    writer = KafkaWriter(settings)
    for number in range(count):
        writer.send(source, b"%d" % number * 50)
        writer.flush()
    writer.close()


def test_a_log_that_was_cut_and_grew_again_is_found_by_the_leader_epoch(
    own_kafka: KafkaNode,
) -> None:
    settings = KafkaSettings(own_kafka.bootstrap)
    ensure_topics(settings, [TopicSpec(SOURCE.topic, 2, replicas=1)])
    for source in (SOURCE, OTHER):
        _write(settings, source, 10)
    ends = high_watermarks(settings, SOURCE.topic)
    records = [r for r in read_until(settings, SOURCE.topic, ends) if r.source == SOURCE]
    epoch = records[-1].leader_epoch
    assert epoch >= 0
    learned = {source: ReadPosition(10, epoch) for source in (SOURCE, OTHER)}
    assert truncated(settings, learned) == []
    ends_before = log_offsets(settings, AdminClient(settings.connection()), [SOURCE, OTHER])
    assert ends_before == learned
    offsets = KafkaOffsets(settings, "scorer")
    transactions = KafkaTransactions(settings, "scorer", offsets)
    transactions.write([], {SOURCE: Committed(10, "id", epoch), OTHER: Committed(3, "id")})
    committed = transactions.committed([SOURCE, OTHER])
    assert committed == {SOURCE: Committed(10, "id", epoch), OTHER: Committed(3, "id", -1)}
    transactions.close()
    offsets.close()

    own_kafka.kill()
    log = own_kafka.directory / "log" / "events-0" / "00000000000000000000.log"
    os.truncate(log, log.stat().st_size * 6 // 10)
    own_kafka.launch()
    own_kafka.wait_ready()
    assert truncated(settings, learned) == [SOURCE]
    _write(settings, SOURCE, 10)
    assert high_watermarks(settings, SOURCE.topic)[SOURCE] > 10
    assert truncated(settings, learned) == [SOURCE]
    assert truncated(settings, {SOURCE: ReadPosition(5, epoch), OTHER: learned[OTHER]}) == []


def test_a_position_behind_the_marker_of_a_new_leader_is_in_a_log_that_lost_nothing(
    own_kafka: KafkaNode,
) -> None:
    settings = KafkaSettings(own_kafka.bootstrap)
    ensure_topics(settings, [TopicSpec(MARKED.topic, 1, replicas=1)])
    _write(settings, MARKED, 3)
    client = {"bootstrap.servers": own_kafka.bootstrap, "log_level": 0}
    producer = Producer(client | {"transactional.id": "writer"})
    producer.init_transactions(30.0)
    producer.begin_transaction()
    producer.produce(MARKED.topic, b"of the old leader", partition=0)
    producer.flush(30.0)
    own_kafka.kill()
    own_kafka.launch()
    own_kafka.wait_ready()
    producer.commit_transaction(60.0)
    [end] = high_watermarks(settings, MARKED.topic).values()
    assert end == 5
    records = list(read_until(settings, MARKED.topic, {MARKED: end}))
    assert records[-1].offset == 3
    epoch = records[-1].leader_epoch
    [at_end] = log_offsets(settings, AdminClient(settings.connection()), [MARKED]).values()
    assert at_end.offset == end and at_end.leader_epoch > epoch
    assert truncated(settings, {MARKED: ReadPosition(end, epoch)}) == []
    _write(settings, MARKED, 1)
    assert truncated(settings, {MARKED: ReadPosition(end, epoch)}) == []
    assert truncated(settings, {MARKED: ReadPosition(end + 1, epoch)}) == [MARKED]


@pytest.mark.parametrize(
    ("offset", "topic_id", "epoch", "expected"),
    [
        (5, "id-of-events", 1, LogState.CONTINUED),
        (5, "", -1, LogState.CONTINUED),
        (8, "id-of-events", 1, LogState.TRUNCATED),
        (8, "id-of-events", -1, LogState.CONTINUED),  # an older headrace stored no epoch
        (11, "id-of-events", -1, LogState.TRUNCATED),
        (2, "id-of-events", 1, LogState.EXPIRED),
        (5, "id-of-another", 1, LogState.RECREATED),
        (11, "id-of-another", 1, LogState.RECREATED),
    ],
)
def test_the_state_of_a_log_is_told_from_its_stored_position(
    offset: int, topic_id: str, epoch: int, expected: LogState
) -> None:
    reader = ListReader({SOURCE: [Record(SOURCE, number, 0, b"") for number in range(3, 10)]})
    reader.cut[SOURCE] = 7
    stored = {SOURCE: Committed(offset, topic_id, epoch)}
    assert log_states(reader, stored) == {SOURCE: expected}


def test_a_log_is_not_cut_because_a_broker_takes_an_older_end_for_its_own() -> None:
    reader = ListReader({SOURCE: [Record(SOURCE, number, 0, b"") for number in range(9)]})
    reader.old_end = 4
    assert log_states(reader, {SOURCE: Committed(8, "")}) == {SOURCE: LogState.CONTINUED}
