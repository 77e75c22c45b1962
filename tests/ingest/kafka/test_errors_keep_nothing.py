"""Errors of an outage keep no frame of the process, and with it no window and no message."""

import weakref
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.ingest.errors import KafkaUnreachable, StreamError
from headrace.ingest.kafka import transactions
from headrace.ingest.kafka.error_translation import translated
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.retry import retry_for
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from tests.ingest.kafka.silent_producer import NoGroup, SilentProducer
from tests.kept_memory import OUTAGES, Held, collector_off, kept_after

SOURCE = Source("topic", 0)


class FailingProducer(SilentProducer):
    """A producer whose commits fail."""

    failure = KafkaError(KafkaError._TIMED_OUT)
    aborts = True

    def __init__(self, config: dict[str, object]) -> None:
        super().__init__(config)
        made.append(weakref.ref(self))

    def commit_transaction(self, timeout_s: float) -> None:
        raise KafkaException(self.failure)

    def abort_transaction(self, timeout_s: float) -> None:
        if not self.aborts:
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))


made: list[weakref.ref[FailingProducer]] = []


@pytest.fixture(autouse=True)
def _collector_off() -> Iterator[None]:
    made.clear()
    with collector_off():
        yield


FAILURES = {
    "timed out": KafkaError(KafkaError._TIMED_OUT),
    "abortable": KafkaError(KafkaError._INCONSISTENT, "", False, False, True),
    "fenced": KafkaError(KafkaError.PRODUCER_FENCED),
    "refused": KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT),
}


@pytest.mark.parametrize("aborts", [True, False])
@pytest.mark.parametrize("failure", FAILURES)
def test_transactions_that_failed_keep_no_memory_of_their_callers(
    failure: str, aborts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "Producer", FailingProducer)
    monkeypatch.setattr(FailingProducer, "failure", FAILURES[failure])
    monkeypatch.setattr(FailingProducer, "aborts", aborts)
    written = KafkaTransactions(KafkaSettings("a:1"), "id", NoGroup())
    kept = kept_after(
        lambda: written.write([Outgoing(SOURCE, b"value")], {SOURCE: Committed(1, "")}), StreamError
    )
    assert kept == 0
    assert sum(producer() is not None for producer in made) <= 1


def test_requests_that_were_given_up_keep_no_memory_of_their_callers() -> None:
    def ask() -> None:
        with translated("asking", "a:1"):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    assert kept_after(lambda: retry_for(0.0)(ask), StreamError) == 0


def test_requests_that_succeed_at_last_keep_no_memory_of_the_failures() -> None:
    windows: list[weakref.ref[Held]] = []

    def ask() -> None:
        window = Held()
        windows.append(weakref.ref(window))
        if len(windows) < OUTAGES:
            raise KafkaUnreachable("a:1")

    retry_for(60.0)(ask)
    assert not any(window() for window in windows)
