"""Writes messages and input offsets in one Kafka transaction: both, or neither.

`Transactions` is all that the joiner needs from Kafka besides reading. `KafkaTransactions` is the
real one, `ingest.kafka.fakes.ListTransactions` the fake. A transaction lives within one call: it
begins when there is something to write, and the call ends with a commit, an abort or an error. So
no transaction is open while the joiner reads, and a stop or a revoked partition has none to end.

Kafka aborts a transaction that takes longer than its timeout. From then on it refuses the producer
with the same error as one fenced by a successor. So after an outage during a transaction the
process creates a new producer. If there was a successor, the new producer fences it, and it stops:
one of the two goes on in either case.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from headrace.ingest.errors import (
    Fenced,
    KafkaRefused,
    KafkaUnreachable,
    StreamError,
    TransactionAborted,
    WriteRefused,
)
from headrace.ingest.kafka.bounded_reader import last_record
from headrace.ingest.kafka.error_translation import translate, translated, unreachable
from headrace.ingest.kafka.producer import producer_config
from headrace.ingest.kafka.settings import TRANSACTION_TIMEOUT_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka import Message

    from headrace.ingest.kafka.protocols import Source
    from headrace.ingest.kafka.settings import KafkaSettings
    from headrace.ingest.kafka.watchdog import Watchdog

log = logging.getLogger(__name__)


class Outgoing(NamedTuple):
    """One message to write."""

    target: Source
    value: bytes
    key: bytes | None = None
    """With the partition BY_KEY it decides the partition."""


class Committed(NamedTuple):
    """The position of a source in the last committed transaction."""

    offset: int
    """First offset not yet taken."""
    metadata: str
    """The checkpoint that the joiner stored with it."""


class Offsets(Protocol):
    """The committed offsets of a consumer group, and the membership that commits them."""

    def committed(self, sources: Iterable[Source]) -> dict[Source, tuple[int, str]]:
        """Return the committed offset and metadata of each source that has one."""

    def group_metadata(self) -> object:
        """Return the membership that commits."""


class Transactions(Protocol):
    """Writes atomically, and returns what was committed last."""

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the position of each source; a source never committed is missing.

        Raises KafkaUnreachable.
        """

    def last(self, target: Source) -> bytes | None:
        """Return the value of the last message written to a partition; None if it is empty.

        Raises KafkaUnreachable.
        """

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        """Write everything in one transaction, or raise.

        Raises TransactionAborted (nothing was written: restore and continue), Fenced,
        KafkaUnreachable (unknown whether it was written: restore from `committed`), WriteRefused.
        """

    def close(self) -> None:
        """Disconnect."""


class KafkaTransactions:
    """A transactional producer that commits the offsets of a group, such as a reader's.

    `transactional_id` stays the same over restarts: before this producer starts, Kafka fences a
    predecessor that is still alive and aborts its open transaction. Raises KafkaUnreachable,
    NotAllowed.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        transactional_id: str,
        offsets: Offsets,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`watchdog`: what ends the process when a transaction hangs beyond all timeouts."""
        self._watchdog = watchdog
        self._settings, self._id, self._offsets = settings, transactional_id, offsets
        self._refused: StreamError | None = None
        self._producer: Producer | None = self._connect()

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the position of each source; a source never committed is missing."""
        found = self._offsets.committed(sources)
        return {source: Committed(*position) for source, position in found.items()}

    def last(self, target: Source) -> bytes | None:
        """Return the value of the last message written to a partition; None if it is empty."""
        record = last_record(self._settings, target)
        return None if record is None else record.value

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        """Write everything in one transaction, or raise."""
        address, timeout_s = self._settings.bootstrap, self._settings.lost_timeout_s
        positions = [
            TopicPartition(source.topic, source.partition, offset, metadata)
            for source, (offset, metadata) in offsets.items()
        ]
        self._refused = None
        if self._producer is None:
            self._producer = self._connect()
        producer, began_s = self._producer, time.monotonic()
        try:
            with translated(f"transaction {self._id}", address, committing=True):
                self._run(producer, messages, positions, timeout_s)
        except StreamError as error:
            found = self._after(producer, error)
            lasted_s = time.monotonic() - began_s
            if (
                isinstance(found, Fenced | KafkaRefused)
                and lasted_s * 1000 > TRANSACTION_TIMEOUT_MS
            ):
                self.close()
                doing = f"transaction {self._id} took {lasted_s:.0f} s, and Kafka ended it: {found}"
                found = unreachable(address, doing)
            raise found from error

    def _run(
        self,
        producer: Producer,
        messages: Sequence[Outgoing],
        positions: list[TopicPartition],
        timeout_s: float,
    ) -> None:
        # both calls have a timeout, which librdkafka does not always keep
        longest_s = 2 * timeout_s + TRANSACTION_TIMEOUT_MS / 1000
        doing = f"transaction {self._id}"
        watched = self._watchdog.guard(doing, longest_s) if self._watchdog else nullcontext()
        with watched:
            producer.begin_transaction()
            for message in messages:
                _produce(producer, message)
            metadata = self._offsets.group_metadata()
            producer.send_offsets_to_transaction(positions, metadata, timeout_s)
            producer.commit_transaction(timeout_s)

    def close(self) -> None:
        """Disconnect."""
        if self._producer is None:
            return
        producer, self._producer = self._producer, None
        try:
            producer.close()
        except KafkaException as error:
            # a fenced producer has no transaction to end, and reports that
            log.warning("closing transactions %s: %s", self._id, error.args[0].str())

    def _connect(self) -> Producer:
        producer = Producer(
            {
                **producer_config(self._settings),
                "transactional.id": self._id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "delivery.timeout.ms": TRANSACTION_TIMEOUT_MS,
                # The commit waits for messages anyway. While Kafka writes the markers of the last
                # commit, it makes the next transaction retry: keep these waits short
                "linger.ms": 0,
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 5,
                "on_delivery": self._on_delivery,
            }
        )
        with translated(f"taking over {self._id}", self._settings.bootstrap):
            producer.init_transactions(2 * self._settings.connect_timeout_s)
        return producer

    def _after(self, producer: Producer, error: StreamError) -> StreamError:
        """Abort if possible; return the error that decides what to do next."""
        if isinstance(error, Fenced):
            return error
        try:
            producer.abort_transaction(self._settings.connect_timeout_s)
        except KafkaException as refused:
            ours = translate(refused, f"aborting {self._id}", self._settings.bootstrap)
            if isinstance(ours, Fenced):
                return ours
            if refused.args[0].code() != KafkaError._STATE:  # noqa: SLF001
                log.warning("%s", ours)
            self.close()  # its state is unreliable: the next transaction uses a new producer
        if isinstance(error, KafkaUnreachable):
            self.close()  # it may keep using connections that are gone
        if self._refused is None:
            return error
        self.close()  # the client lost count of its messages: its next transaction would fail
        # the refused message is the cause of the failed transaction
        return self._refused if isinstance(error, TransactionAborted) else error

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            doing = f"writing to {message.topic()}/{message.partition()}"
            ours = translate(error, doing, self._settings.bootstrap)
            if isinstance(ours, WriteRefused):
                self._refused = self._refused or ours


def _produce(producer: Producer, message: Outgoing) -> None:
    target, value, key = message
    while True:
        try:
            producer.produce(target.topic, value, key, target.partition)
        except BufferError:
            producer.poll(0.05)  # the queue empties as Kafka acknowledges
        else:
            return
