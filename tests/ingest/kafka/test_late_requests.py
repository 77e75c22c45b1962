"""Requests that a broker reads late, on a real broker: they change no later transaction.

The proxy does what networks and frozen brokers do. A request waits in the buffers of a broker while
the connection of its client breaks, so the client sends it again. Kafka has no sequence numbers for
requests about transactions, so the first copy would take effect in a later transaction.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.ingest.errors import StreamError
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from tests.ingest.kafka.kafka_behind_proxy import (
    END_TXN,
    PRODUCE,
    REQUESTS,
    TXN_OFFSET_COMMIT,
    KafkaBehindProxy,
)
from tests.running_server import jars, running_server

pytestmark = pytest.mark.long

MOMENTS = {"Produce": PRODUCE, "TxnOffsetCommit": TXN_OFFSET_COMMIT, "EndTxn": END_TXN}
"""Requests of the next transaction before which a late one arrives."""


@pytest.fixture(scope="module")
def broker(stack_directory: Path) -> Iterator[KafkaBehindProxy]:
    directory = stack_directory / "kafka-behind-proxy"
    with running_server(KafkaBehindProxy(directory, jars(), remove=stack_directory)) as node:
        yield node
        node.proxy.stop()


class Written:
    """Transactions through the proxy, and what readers see of them."""

    def __init__(self, broker: KafkaBehindProxy, name: str) -> None:
        self.proxy = broker.proxy
        self.settings = KafkaSettings(broker.bootstrap)
        self.source, self.target = Source(f"in-{name}", 0), Source(f"out-{name}", 0)
        ensure_topics(
            self.settings, [TopicSpec(self.source.topic, 1), TopicSpec(self.target.topic, 1)]
        )
        self.offsets = KafkaOffsets(self.settings, name)
        self.transactions = KafkaTransactions(self.settings, name, self.offsets)

    def write(self, name: str, offset: int, size: int = 1) -> None:
        """Write two messages and the offset, until Kafka has them."""
        values = [f"{name}{part}".encode().ljust(size) for part in "ab"]
        for attempt in itertools.count():
            try:
                self.transactions.write(
                    [Outgoing(self.target, value) for value in values],
                    {self.source: Committed(offset, name)},
                )
            except StreamError:
                assert attempt < 5
                if self.position().metadata == name:
                    return
            else:
                return

    def position(self) -> Committed:
        return self.transactions.committed([self.source])[self.source]

    def names(self) -> list[str]:
        records = read_all(self.settings, self.target.topic)
        return [record.value.decode().strip() for record in records]

    def close(self) -> None:
        self.transactions.close()
        self.offsets.close()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("late", REQUESTS)
def test_a_late_request_of_a_written_transaction_changes_no_later_one(
    broker: KafkaBehindProxy, late: str, moment: str, fresh_name: Callable[[str], str]
) -> None:
    with closing(Written(broker, fresh_name("late"))) as written:
        written.write("one", 1)
        broker.proxy.cut = REQUESTS[late]
        written.write("two", 2)
        held = broker.proxy.held.pop()
        broker.proxy.before = {MOMENTS[moment]: held.arrive}
        written.write("three", 3)
        assert not broker.proxy.before, "the moment never came"
        assert written.position() == Committed(3, "three")
        assert written.names() == ["onea", "oneb", "twoa", "twob", "threea", "threeb"]


def test_a_late_commit_ends_the_next_transaction_of_the_same_producer(
    broker: KafkaBehindProxy, fresh_name: Callable[[str], str]
) -> None:
    """Kafka behaves so with librdkafka's version of the protocol; with another, drop the rest."""
    name = fresh_name("same")
    with closing(Written(broker, name)) as written:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{name}.same"}
        )
        producer.init_transactions(30.0)
        broker.proxy.cut = END_TXN
        for value in (b"one", b"two"):
            producer.begin_transaction()
            producer.produce(written.target.topic, value, partition=0)
            producer.flush(30.0)
            if value == b"one":
                producer.commit_transaction(30.0)
        broker.proxy.held.pop().arrive()
        assert written.names() == ["one", "two"]
        with pytest.raises(KafkaException, match="INVALID_TXN_STATE"):
            producer.close()
    ends = {version for kind, version in broker.proxy.seen if kind == END_TXN}
    assert max(ends) < 5, "the client now speaks KIP-890 part 2: epochs rise by themselves"
