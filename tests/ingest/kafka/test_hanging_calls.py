"""Calls of the Kafka client that do not return: a transaction, and the end of a producer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka import transactions
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.settings import TRANSACTION_TIMEOUT_MS, KafkaSettings
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from headrace.ingest.kafka.watchdog import Watchdog
from tests.ingest.kafka.silent_producer import NoGroup, SilentProducer

SOURCE = Source("topic", 0)
WAIT_S = 60.0


class FrozenProducer(SilentProducer):
    """A producer of a broker that answers nothing from the first transaction on."""

    released = threading.Event()
    made: ClassVar[list[FrozenProducer]] = []

    def __init__(self, config: dict[str, object]) -> None:
        super().__init__(config)
        self.closed = threading.Event()
        self.hangs_in_offsets = False
        self.timeouts_s: list[float] = []
        self.made.append(self)

    def init_transactions(self, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)

    def send_offsets_to_transaction(self, offsets: Any, group: Any, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)
        if self.hangs_in_offsets:
            assert self.released.wait(WAIT_S)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def close(self) -> None:
        assert self.released.wait(WAIT_S)
        self.closed.set()


@pytest.fixture(autouse=True)
def _frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(transactions, "Producer", FrozenProducer)
    monkeypatch.setattr(transactions, "_LEAST_WAIT_S", 0.01)
    FrozenProducer.made = []
    FrozenProducer.released.clear()
    yield
    FrozenProducer.released.set()


def write(to: KafkaTransactions) -> None:
    to.write([Outgoing(SOURCE, b"value")], {SOURCE: Committed(1, "")})


def test_a_producer_that_cannot_be_closed_is_left_behind() -> None:
    written = KafkaTransactions(KafkaSettings("a:1"), "id", NoGroup())
    for _ in range(2):
        with pytest.raises(KafkaUnreachable):
            write(written)
    first, second = FrozenProducer.made
    assert not first.closed.is_set()
    FrozenProducer.released.set()
    assert first.closed.wait(WAIT_S) and second.closed.wait(WAIT_S)


def test_no_call_of_a_transaction_gets_more_time_than_kafka_gives_the_transaction() -> None:
    with pytest.raises(KafkaUnreachable):
        write(KafkaTransactions(KafkaSettings("a:1", lost_timeout_s=60.0), "id", NoGroup()))
    [producer] = FrozenProducer.made
    longest_s = TRANSACTION_TIMEOUT_MS / 1000
    assert producer.config["transaction.timeout.ms"] == TRANSACTION_TIMEOUT_MS
    assert max(producer.timeouts_s) <= longest_s


def test_offsets_that_hang_beyond_their_timeout_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "TRANSACTION_TIMEOUT_MS", 10)
    monkeypatch.setattr(transactions, "MARGIN_S", 0.01)
    expired: list[str] = []

    def expire(doing: str) -> None:
        expired.append(doing)
        FrozenProducer.released.set()

    watchdog = Watchdog(threading.Event(), expire)
    written = KafkaTransactions(KafkaSettings("a:1"), "id", NoGroup(), watchdog)
    FrozenProducer.made[0].hangs_in_offsets = True
    with pytest.raises(KafkaUnreachable):
        write(written)
    assert expired == ["transaction id"]


def test_a_producer_that_takes_over_too_early_is_a_reason_to_retry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: object, timeout_s: float) -> None:
        raise KafkaException(KafkaError(KafkaError.CONCURRENT_TRANSACTIONS))

    monkeypatch.setattr(FrozenProducer, "init_transactions", refuse)
    with pytest.raises(KafkaUnreachable, match="taking over id"):
        KafkaTransactions(KafkaSettings("a:1"), "id", NoGroup())
