"""Tests the translation of every error of the Kafka client."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.ingest import errors
from headrace.ingest.errors import (
    Fenced,
    KafkaRefused,
    KafkaUnreachable,
    StreamError,
    TransactionAborted,
)
from headrace.ingest.kafka.error_translation import KIND_OF, translate, translated

CODES = sorted(name for name in dir(KafkaError) if name.isupper() and name != "NO_ERROR")


@pytest.mark.parametrize("name", CODES)
def test_every_error_code_of_the_client_has_a_translation(name: str) -> None:
    assert getattr(KafkaError, name) in KIND_OF


def test_every_error_class_is_the_translation_of_some_code() -> None:
    ours = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, StreamError) and kind is not StreamError
    }
    made_by_us = {
        *(errors.TopicMismatch, errors.BadCheckpoint),
        *(errors.BackfillRefused, errors.DamagedMessage, errors.ExamplesMissing),
    }
    assert set(KIND_OF.values()) == ours - made_by_us


def test_the_unreachable_error_names_the_address_and_the_setting() -> None:
    error = translate(KafkaError(KafkaError._TRANSPORT), "reading", "broker.example:9092")
    assert isinstance(error, KafkaUnreachable)
    assert "broker.example:9092" in str(error)
    assert "--kafka" in str(error)
    assert "HEADRACE_KAFKA" in str(error)


def test_an_abortable_error_during_a_commit_becomes_transaction_aborted() -> None:
    said = KafkaError(KafkaError._TIMED_OUT, "markers", False, False, True)
    assert isinstance(translate(said, "committing", "a:1", committing=True), TransactionAborted)
    assert isinstance(translate(said, "reading", "a:1"), KafkaUnreachable)


def test_a_transaction_that_a_late_request_has_ended_is_aborted_though_the_client_says_fatal() -> (
    None
):
    said = KafkaError(KafkaError.INVALID_TXN_STATE, "offsets", True)
    assert isinstance(translate(said, "committing", "a:1", committing=True), TransactionAborted)
    assert isinstance(translate(said, "reading", "a:1"), KafkaRefused)


def test_an_exception_without_an_error_code_is_translated_too() -> None:
    with (
        pytest.raises(KafkaRefused, match="doing this: no such setting"),
        translated("doing this", "a:1"),
    ):
        raise KafkaException("no such setting")


def test_a_fatal_error_is_classed_by_the_cause_in_its_text() -> None:
    words = (
        "Fatal error: Broker: Static consumer fenced by other consumer with same group.instance.id"
    )
    fatal = KafkaError(KafkaError._FATAL, words)
    assert isinstance(translate(fatal, "reading", "a:1"), Fenced)
