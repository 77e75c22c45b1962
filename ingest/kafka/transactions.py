"""Writes messages and input offsets in one Kafka transaction: both, or neither.

`Transactions` is all that the joiner needs from Kafka besides reading. `KafkaTransactions` is the
real one, `ingest.kafka.fakes.ListTransactions` the fake. A transaction lives within one call: it
begins when there is something to write, and the call ends with a commit, an abort or an error. So
no transaction is open while the joiner reads, and a stop or a revoked partition has none to end.

Kafka aborts a transaction that takes longer than its timeout. From then on it refuses the producer
with the same error as one fenced by a successor. So after an outage during a transaction the
process creates a new producer. If there was a successor, the new producer fences the successor,
which stops: one of the two goes on in either case.

After every aborted transaction the process creates a new producer, too, and after every transaction
during which the client lost a connection. Requests about transactions have no sequence numbers. One
that waited in a frozen connection while its transaction ended by other means would take effect in
the next transaction of the same producer (`client_log`). Kafka refuses it from a producer whose
epoch has passed.

Within a transaction no call is therefore given more time than Kafka gives the transaction: a call
that returns later can only fail. librdkafka does not keep this timeout in
`send_offsets_to_transaction` (issues 5456 and 5511): once the broker that coordinates the group is
gone from the metadata, the call waits until some other connection changes, which took ten minutes.
A `Watchdog` then ends the process, and the next one begins at the last commit.

*Refused:* leaving out the call, since the last batch of examples carries the position too. The call
sends the membership of the group (KIP-447), by which Kafka aborts the transaction of a member whose
partitions moved to another one. The transactional id does not fence that member: ids belong to
instances, not to partitions.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from headrace.ingest.errors import (
    Fenced,
    KafkaRefused,
    KafkaUnreachable,
    StreamError,
    TransactionAborted,
    WriteRefused,
)
from headrace.ingest.kafka.client_log import LOGGED, ConnectionLog
from headrace.ingest.kafka.error_translation import translate, translated, unreachable
from headrace.ingest.kafka.producer import producer_config, read_new_partitions
from headrace.ingest.kafka.protocols import Committed, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all, records_before
from headrace.ingest.kafka.settings import TRANSACTION_TIMEOUT_MS, KafkaSettings
from headrace.ingest.kafka.watchdog import MARGIN_S, Watchdog

log = logging.getLogger(__name__)

_LEAST_WAIT_S = 1.0
"""For a commit however long the transaction took: an ordinary one takes milliseconds."""


class Outgoing(NamedTuple):
    """One message to write."""

    target: Source
    value: bytes
    key: bytes | None = None
    """With the partition BY_KEY it decides the partition."""


class Offsets(Protocol):
    """The committed offsets of a consumer group, and the membership that commits them."""

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the committed offset of each source that has one."""

    def group_metadata(self) -> object:
        """Return the membership that commits."""


class Transactions(Protocol):
    """Writes atomically, and returns what was committed last."""

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the position of each source; a source never committed is missing.

        Raises KafkaUnreachable.
        """

    def tail(
        self, targets: Iterable[Source], enough: Callable[[bytes], bool]
    ) -> dict[Source, list[bytes]]:
        """Return the last messages of each of these partitions of a topic, in order.

        From the last one that is `enough` on; all if none is. An empty partition is missing. The
        messages of every transaction that ended before are among them. Raises KafkaUnreachable.
        """

    def history(self, target: Source) -> Iterator[bytes]:
        """Yield the value of every message written to a partition, in order.

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
        self._settings, self._offsets = settings, offsets
        self._id = settings.names.physical(transactional_id)
        self._refused: StreamError | None = None
        self._producer: Producer | None = None
        self._connections = ConnectionLog()
        self._connect()

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the position of each source; a source never committed is missing."""
        if self._producer is None:
            self._connect()  # ends a transaction that still holds offsets, before its timeout
        return self._offsets.committed(sources)

    def tail(
        self, targets: Iterable[Source], enough: Callable[[bytes], bool]
    ) -> dict[Source, list[bytes]]:
        """Return the last messages of each of these partitions of a topic, in order."""
        ends = self._ends(list(targets))
        found = records_before(self._settings, ends, lambda record: enough(record.value))
        return {source: [record.value for record in records] for source, records in found.items()}

    def _ends(self, targets: Sequence[Source]) -> dict[Source, int]:
        """Return the offset of a probe in each partition: all that was ever written is before it.

        A broker that leads a partition no more may still answer from its old state, and so with an
        old end. It cannot have the probe. Its transaction is aborted, so no reader gets it, and has
        a producer of its own, so that no late request commits it.
        """
        ends: dict[Source, int] = {}
        failures: list[StreamError] = []
        address = self._settings.bootstrap

        def note(target: Source, error: KafkaError | None, message: Message) -> None:
            if error is None:
                ends[target] = message.offset() or 0
            else:
                failures.append(translate(error, f"finding the end of {target}", address))

        def probe(producer: Producer) -> None:
            with self._guard("probe", TRANSACTION_TIMEOUT_MS / 1000):
                producer.begin_transaction()
                for target in targets:
                    topic = self._settings.names.physical(target.topic)
                    producer.produce(
                        topic, b"", partition=target.partition, on_delivery=partial(note, target)
                    )
                producer.flush(TRANSACTION_TIMEOUT_MS / 1000)
                producer.abort_transaction(self._settings.connect_timeout_s)
            if len(ends) < len(targets):
                raise failures[0] if failures else unreachable(address, "finding the end")

        self._drop()
        try:
            self._attempt(self._connect(reports=True), probe)
        except TransactionAborted as error:
            raise unreachable(address, str(error)) from error
        self._drop()
        return ends

    def history(self, target: Source) -> Iterator[bytes]:
        """Yield the value of every message written to a partition, in order."""
        for record in read_all(self._settings, target.topic):
            if record.source == target:
                yield record.value

    def write(self, messages: Sequence[Outgoing], offsets: Mapping[Source, Committed]) -> None:
        """Write everything in one transaction, or raise."""
        settings = self._settings
        positions = [
            TopicPartition(
                settings.names.physical(source.topic),
                source.partition,
                offset,
                metadata,
                leader_epoch=epoch,
            )
            for source, (offset, metadata, epoch) in offsets.items()
        ]
        producer = self._producer or self._connect()
        self._attempt(producer, lambda used: self._run(used, messages, positions))

    def _attempt(self, producer: Producer, work: Callable[[Producer], None]) -> None:
        """Do the work of one transaction; after an error, end it and its producer."""
        address, began_s = self._settings.bootstrap, time.monotonic()
        self._refused = None
        producer.poll(0.0)
        self._connections.lost = False  # lost before: all requests of then were answered
        try:
            with translated(f"transaction {self._id}", address, committing=True):
                work(producer)
        except StreamError as error:
            with self._guard("aborting", self._settings.connect_timeout_s):
                found = self._after(producer, error)
            lasted_s = time.monotonic() - began_s
            if (
                isinstance(found, Fenced | KafkaRefused)
                and lasted_s * 1000 > TRANSACTION_TIMEOUT_MS
            ):
                self._drop()
                doing = f"transaction {self._id} took {lasted_s:.0f} s, and Kafka ended it: {found}"
                found = unreachable(address, doing)
            try:
                raise found from (None if found is error else error)
            finally:
                # an error and a frame that refers to it keep each other, and the frames of all
                # callers: after each outage a joiner kept the windows of before
                del found
        producer.poll(0.0)  # the lines of the client, too
        if self._connections.lost:
            log.info("transaction %s lost a connection: going on with another producer", self._id)
            self._drop()

    def _run(
        self,
        producer: Producer,
        messages: Sequence[Outgoing],
        positions: list[TopicPartition],
    ) -> None:
        longest_s = TRANSACTION_TIMEOUT_MS / 1000
        ends_s = time.monotonic() + longest_s
        with self._guard("transaction", longest_s):
            producer.begin_transaction()
            for message in messages:
                _produce(producer, message, self._settings)
            metadata = self._offsets.group_metadata()
            producer.send_offsets_to_transaction(positions, metadata, longest_s)
            producer.commit_transaction(max(_LEAST_WAIT_S, ends_s - time.monotonic()))

    def _guard(self, doing: str, timeout_s: float) -> AbstractContextManager[None]:
        """Return a block in which a call that outlasts its timeout ends the process."""
        if self._watchdog is None:
            return nullcontext()
        return self._watchdog.guard(f"{doing} {self._id}", timeout_s + MARGIN_S)

    def close(self) -> None:
        """Disconnect."""
        self._drop(self._settings.connect_timeout_s)

    def _drop(self, wait_s: float = _LEAST_WAIT_S) -> None:
        """Close the producer, in a thread that is left behind if that takes longer.

        The client has no timeout for this, and waits for a frozen broker. Messages that it still
        sends have an old epoch, and Kafka refuses them.
        """
        if self._producer is None:
            return
        closing = threading.Thread(target=self._close, args=[self._producer], daemon=True)
        self._producer = None
        closing.start()
        closing.join(wait_s)

    def _close(self, producer: Producer) -> None:
        try:
            producer.close()
        except (KafkaException, RuntimeWarning, SystemError) as error:
            # a fenced producer has no transaction to end: the client warns of the failed abort,
            # which is a SystemError if warnings are errors
            log.warning("closing transactions %s: %s", self._id, error)

    def _connect(self, *, reports: bool = False) -> Producer:
        """Create a producer. reports: of every message, not only of those that fail."""
        self._connections = ConnectionLog()
        self._producer = Producer(
            {
                **producer_config(self._settings),
                **LOGGED,
                "logger": self._connections,
                "delivery.report.only.error": not reports,
                "transactional.id": self._id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "delivery.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "socket.timeout.ms": TRANSACTION_TIMEOUT_MS,
                # The commit waits for messages anyway. While Kafka writes the markers of the last
                # commit, it makes the next transaction retry: keep these waits short
                "linger.ms": 0,
                "retry.backoff.ms": 1,
                "retry.backoff.max.ms": 5,
                "on_delivery": self._on_delivery,
            }
        )
        address, timeout_s = self._settings.bootstrap, 2 * self._settings.connect_timeout_s
        guard = self._guard("taking over", timeout_s)
        try:
            with translated(f"taking over {self._id}", address), guard:
                self._producer.init_transactions(timeout_s)
        except TransactionAborted as error:
            # Kafka still ends the transaction of the producer before: the caller may retry
            self._drop()
            raise unreachable(address, str(error)) from error
        except StreamError:
            self._drop()
            raise
        return self._producer

    def _after(self, producer: Producer, error: StreamError) -> StreamError:
        """Abort if possible; return the error that decides what to do next."""
        if isinstance(error, Fenced):
            return error
        if isinstance(error, KafkaUnreachable):
            self._drop()  # it may keep using connections that are gone; the next one aborts
            return error
        try:
            producer.abort_transaction(self._settings.connect_timeout_s)
        except KafkaException as refused:
            ours = translate(refused, f"aborting {self._id}", self._settings.bootstrap)
            if isinstance(ours, Fenced):
                return ours
            if refused.args[0].code() != KafkaError._STATE:  # noqa: SLF001
                log.warning("%s", ours)
        self._drop()  # requests of it may still be on their way, and join its next transaction
        if self._refused is None:
            return error
        # the refused message is the cause of the failed transaction
        return self._refused if isinstance(error, TransactionAborted) else error

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            doing = f"writing to {message.topic()}/{message.partition()}"
            ours = translate(error, doing, self._settings.bootstrap)
            if isinstance(ours, WriteRefused):
                self._refused = self._refused or ours


def _produce(producer: Producer, message: Outgoing, settings: KafkaSettings) -> None:
    target, value, key = message
    topic = settings.names.physical(target.topic)
    while True:
        try:
            producer.produce(topic, value, key, target.partition)
        except KafkaException as error:
            read_new_partitions(producer, target, error, settings)
        except BufferError:
            producer.poll(0.05)  # the queue empties as Kafka acknowledges
        else:
            return
