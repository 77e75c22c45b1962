"""Translates errors of the Kafka client into headrace's own, in one place.

`KIND_OF` maps every error code of the client. A test fails if a code is missing, so a new version
of the client cannot add one unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

from headrace.ingest.errors import (
    Fenced,
    KafkaRefused,
    KafkaUnreachable,
    MissingTopic,
    NotAllowed,
    OffsetGone,
    StreamError,
    TransactionAborted,
    WriteRefused,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

_NAMES: dict[type[StreamError], str] = {
    KafkaUnreachable: """
        _ALL_BROKERS_DOWN _DESTROY_BROKER _ISR_INSUFF _MSG_TIMED_OUT _NODE_UPDATE _RESOLVE _RETRY
        _SSL _TIMED_OUT _TIMED_OUT_QUEUE _TRANSPORT _UNKNOWN_BROKER _WAIT_CACHE _WAIT_COORD
        BROKER_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE FENCED_LEADER_EPOCH KAFKA_STORAGE_ERROR LEADER_NOT_AVAILABLE
        LISTENER_NOT_FOUND NETWORK_EXCEPTION NOT_CONTROLLER NOT_COORDINATOR NOT_ENOUGH_REPLICAS
        NOT_ENOUGH_REPLICAS_AFTER_APPEND NOT_LEADER_FOR_PARTITION OFFSET_NOT_AVAILABLE
        PREFERRED_LEADER_NOT_AVAILABLE REBOOTSTRAP_REQUIRED REPLICA_NOT_AVAILABLE
        REQUEST_TIMED_OUT STALE_BROKER_EPOCH STALE_CTRL_EPOCH THROTTLING_QUOTA_EXCEEDED
        UNKNOWN_LEADER_EPOCH UNSTABLE_OFFSET_COMMIT""",
    TransactionAborted: """
        _ASSIGNMENT_LOST _GAPLESS_GUARANTEE _MAX_POLL_EXCEEDED _PURGE_INFLIGHT _PURGE_QUEUE
        CONCURRENT_TRANSACTIONS DUPLICATE_SEQUENCE_NUMBER FENCED_MEMBER_EPOCH ILLEGAL_GENERATION
        INVALID_PRODUCER_ID_MAPPING OUT_OF_ORDER_SEQUENCE_NUMBER REBALANCE_IN_PROGRESS
        STALE_MEMBER_EPOCH TRANSACTION_ABORTABLE UNKNOWN_MEMBER_ID UNKNOWN_PRODUCER_ID""",
    Fenced: """
        _FENCED FENCED_INSTANCE_ID INVALID_PRODUCER_EPOCH PRODUCER_FENCED
        TRANSACTION_COORDINATOR_FENCED UNRELEASED_INSTANCE_ID""",
    NotAllowed: """
        _AUTHENTICATION CLUSTER_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED
        DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_EXPIRED DELEGATION_TOKEN_NOT_FOUND
        DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        GROUP_AUTHORIZATION_FAILED ILLEGAL_SASL_STATE INVALID_PRINCIPAL_TYPE
        PRINCIPAL_DESERIALIZATION_FAILURE SASL_AUTHENTICATION_FAILED SECURITY_DISABLED
        TOPIC_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED UNACCEPTABLE_CREDENTIAL
        UNSUPPORTED_SASL_MECHANISM""",
    MissingTopic: """
        _UNKNOWN_PARTITION _UNKNOWN_TOPIC INCONSISTENT_TOPIC_ID TOPIC_EXCEPTION UNKNOWN_TOPIC_ID
        UNKNOWN_TOPIC_OR_PART""",
    OffsetGone: "_AUTO_OFFSET_RESET _LOG_TRUNCATION _NO_OFFSET OFFSET_OUT_OF_RANGE",
    WriteRefused: """
        _BAD_COMPRESSION _BAD_MSG _INVALID_DIFFERENT_RECORD _KEY_SERIALIZATION _QUEUE_FULL
        _VALUE_SERIALIZATION INVALID_MSG INVALID_MSG_SIZE INVALID_RECORD INVALID_REQUIRED_ACKS
        INVALID_TIMESTAMP MSG_SIZE_TOO_LARGE OFFSET_METADATA_TOO_LARGE POLICY_VIOLATION
        RECORD_LIST_TOO_LARGE UNSUPPORTED_COMPRESSION_TYPE UNSUPPORTED_FOR_MESSAGE_FORMAT
        INVALID_COMMIT_OFFSET_SIZE""",
    KafkaRefused: """
        _APPLICATION _ASSIGN_PARTITIONS _CONFLICT _CRIT_SYS_RESOURCE _DESTROY
        _EXISTING_SUBSCRIPTION _FAIL _FATAL _FS _INCONSISTENT _INTR _INVALID_ARG _INVALID_TYPE
        _IN_PROGRESS _KEY_DESERIALIZATION _NOENT _NOOP _NOT_CONFIGURED _NOT_IMPLEMENTED _OUTDATED
        _PARTIAL _PARTITION_EOF _PREV_IN_PROGRESS _READ_ONLY _REVOKE_PARTITIONS _STATE _UNDERFLOW
        _UNKNOWN_GROUP _UNKNOWN_PROTOCOL _UNSUPPORTED_FEATURE _VALUE_DESERIALIZATION
        DUPLICATE_RESOURCE DUPLICATE_VOTER ELECTION_NOT_NEEDED FEATURE_UPDATE_FAILED
        FENCED_STATE_EPOCH FETCH_SESSION_ID_NOT_FOUND GROUP_ID_NOT_FOUND GROUP_MAX_SIZE_REACHED
        GROUP_SUBSCRIBED_TO_TOPIC INCONSISTENT_GROUP_PROTOCOL INCONSISTENT_VOTER_SET INVALID_CONFIG
        INVALID_FETCH_SESSION_EPOCH INVALID_GROUP_ID INVALID_PARTITIONS INVALID_RECORD_STATE
        INVALID_REGISTRATION INVALID_REGULAR_EXPRESSION INVALID_REPLICATION_FACTOR
        INVALID_REPLICA_ASSIGNMENT INVALID_REQUEST INVALID_SESSION_TIMEOUT
        INVALID_SHARE_SESSION_EPOCH INVALID_TRANSACTION_TIMEOUT INVALID_TXN_STATE
        INVALID_UPDATE_VERSION INVALID_VOTER_KEY LOG_DIR_NOT_FOUND MEMBER_ID_REQUIRED
        MISMATCHED_ENDPOINT_TYPE NON_EMPTY_GROUP NO_REASSIGNMENT_IN_PROGRESS
        OPERATION_NOT_ATTEMPTED REASSIGNMENT_IN_PROGRESS RESOURCE_NOT_FOUND
        SHARE_SESSION_LIMIT_REACHED SHARE_SESSION_NOT_FOUND STREAMS_INVALID_TOPOLOGY
        STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED TELEMETRY_TOO_LARGE
        TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED UNKNOWN UNKNOWN_CONTROLLER_ID
        UNKNOWN_SUBSCRIPTION_ID UNSUPPORTED_ASSIGNOR UNSUPPORTED_ENDPOINT_TYPE UNSUPPORTED_VERSION
        VOTER_NOT_FOUND""",
}

KIND_OF: dict[int, type[StreamError]] = {
    getattr(KafkaError, name): kind
    for kind, names in _NAMES.items()
    for name in names.split()
    if hasattr(KafkaError, name)  # an older client of the supported range lacks some
}
"""Error code of the client -> class of headrace."""


_DESCRIPTIONS = sorted(
    ((KafkaError(code).str(), code) for code in KIND_OF if code != KafkaError._FATAL),  # noqa: SLF001
    key=lambda pair: -len(pair[0]),
)


def _cause(error: KafkaError) -> int:
    """Return the code of an error; for a fatal one, the code of its cause.

    The client gives that cause only in words, as its own description of the code.
    """
    if error.code() != KafkaError._FATAL:  # noqa: SLF001
        return error.code()
    text = error.str()
    return next((code for words, code in _DESCRIPTIONS if words in text), error.code())


def translate(
    error: KafkaError | KafkaException, doing: str, address: str = "", *, committing: bool = False
) -> StreamError:
    """Return headrace's error for the client's: the action, the address, and Kafka's message.

    While `committing` a transaction, an error that the client calls abortable is
    `TransactionAborted`, whatever its code. So is INVALID_TXN_STATE, which the client calls fatal:
    a late request has ended the transaction, and the next producer begins another one.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return KafkaRefused(f"{doing}: {cause}")
    code = _cause(cause)
    kind = KIND_OF.get(code, KafkaRefused)
    if committing and (cause.txn_requires_abort() or code == KafkaError.INVALID_TXN_STATE):
        kind = TransactionAborted
    text = f"{doing}: {cause.str()} ({cause.name()})"
    if kind is KafkaUnreachable and cause.code() > 0:  # a broker's own error
        return KafkaUnreachable(f"Kafka at {address} is not ready: {text}")
    if kind is KafkaUnreachable:
        return unreachable(address, text)
    return kind(text)


def unreachable(address: str, doing: str) -> KafkaUnreachable:
    """Return the error for an address without an answer; it says what to do."""
    return KafkaUnreachable(
        f"no Kafka broker answers at {address}: start Kafka, or correct the address in --kafka / "
        f"HEADRACE_KAFKA ({doing})"
    )


@contextmanager
def translated(doing: str, address: str, *, committing: bool = False) -> Iterator[None]:
    """Raise headrace's errors for the client's errors inside the block."""
    try:
        yield
    except KafkaException as error:
        raise translate(error, doing, address, committing=committing) from error
    except RuntimeError as error:  # by a thread that reports while another one closes the client
        raise StreamError(f"{doing}: expected an open client, got a closed one") from error


def answer_of(future: Future[Any]) -> Any:
    """Return the result of a request of the client, or raise its error.

    `Future.result` raises an error that the future keeps: the caller's frame, which has the future,
    is then in a cycle, and with it the client and all its threads.
    """
    error = future.exception()
    if error is None:
        return future.result()
    raise type(error)(*error.args)
