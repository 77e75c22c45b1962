"""Calls go on while the coordinator of a group or a transaction moves to another broker."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.ingest import broker_rehearsal
from headrace.ingest.broker_rehearsal import BrokerRehearsal
from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.error_translation import translate
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets, committed_by
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from tests.ingest.kafka.mock_broker import MockBroker, Request, mock_broker

MOVING = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE]
SOURCE = Source("events", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    with mock_broker() as started:
        started.create(SOURCE.topic, 2)
        yield started


@pytest.fixture
def settings(broker: MockBroker) -> KafkaSettings:
    return KafkaSettings(broker.bootstrap)


@pytest.mark.parametrize("request_", [Request.OFFSET_FETCH, Request.FIND_COORDINATOR], ids=str)
def test_committed_offsets_are_read_while_the_coordinator_of_the_group_moves(
    broker: MockBroker, settings: KafkaSettings, request_: Request
) -> None:
    broker.fail(request_, MOVING)
    assert committed_by(settings, "group", [SOURCE]) == {}


@pytest.mark.parametrize(
    "request_",
    [
        Request.INIT_PRODUCER_ID,
        Request.ADD_PARTITIONS_TO_TRANSACTION,
        Request.ADD_OFFSETS_TO_TRANSACTION,
        Request.TRANSACTION_OFFSET_COMMIT,
        Request.END_TRANSACTION,
    ],
    ids=str,
)
def test_a_transaction_is_committed_while_a_coordinator_moves(
    broker: MockBroker, settings: KafkaSettings, request_: Request
) -> None:
    with closing(KafkaOffsets(settings, "group")) as offsets:
        broker.fail(request_, MOVING)
        with closing(KafkaTransactions(settings, "writer", offsets)) as transactions:
            transactions.write([Outgoing(SOURCE, b"x")], {SOURCE: Committed(3, "", -1)})


def test_a_broker_that_is_no_coordinator_is_called_not_ready_and_not_absent() -> None:
    error = translate(KafkaError(KafkaError.NOT_COORDINATOR), "reading", "broker.example:9092")
    assert isinstance(error, KafkaUnreachable)
    assert str(error).startswith("Kafka at broker.example:9092 is not ready: reading")


def test_a_rehearsal_deletes_its_group_while_the_coordinator_moves(
    monkeypatch: pytest.MonkeyPatch, settings: KafkaSettings
) -> None:
    answers: list[KafkaException | None] = [
        *(KafkaException(KafkaError(code)) for code in MOVING),
        None,
    ]

    class Admin:
        """Deletes after some refusals."""

        def __init__(self, _config: dict[str, Any]) -> None:
            pass

        def delete_topics(self, names: list[str]) -> dict[str, Future[None]]:
            return {name: _answer(None) for name in names}

        def delete_consumer_groups(self, names: list[str]) -> dict[str, Future[None]]:
            return {name: _answer(answers.pop(0)) for name in names}

    monkeypatch.setattr(broker_rehearsal, "AdminClient", Admin)
    monkeypatch.setattr(broker_rehearsal, "ensure_topics", lambda *_: [])
    rehearsal = BrokerRehearsal(settings, transactions=0)
    rehearsal.start()
    rehearsal.wait()
    assert answers == []


def _answer(error: KafkaException | None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future
