"""Clients, clock and retries of a loop that reads from Kafka, works, and writes in transactions.

The joiner, the scorer and evaluation's feeder are such loops. Each takes all that is at its edge as
one value, so that a test replaces it as a whole (`ingest.kafka.fakes.memory_ports`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from tenacity import Retrying

from headrace.ingest.kafka.protocols import BlockReader
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.retry import AbortBackoff, retry_until
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.transactions import KafkaTransactions, Transactions
from headrace.ingest.kafka.watchdog import Watchdog
from headrace.runtime.clock import steady_ms
from headrace.runtime.process import unique_name

ReaderT_co = TypeVar("ReaderT_co", bound=BlockReader, covariant=True)


@dataclass(frozen=True, slots=True)
class TransactionalPorts(Generic[ReaderT_co]):
    """The edge of one loop."""

    reader: ReaderT_co
    transactions: Transactions
    now_ms: Callable[[], int]
    """The loop's clock."""
    aborts: AbortBackoff
    """Waits after an abort, before the work since the last commit is repeated."""
    restoring: Retrying
    """Repeats the lookup of committed positions while Kafka is not ready."""


@contextmanager
def open_ports(
    kafka: KafkaSettings,
    group: str,
    topics: Sequence[str],
    instance: str,
    stop: threading.Event,
    now_ms: Callable[[], int] = steady_ms,
) -> Iterator[TransactionalPorts[KafkaReader]]:
    """Join the consumer group, take over its transactions, and leave both when the block ends.

    instance: a name that stays the same over restarts; empty: a new name. stop: ends the waits of
    retries. now_ms: the clock of the loop; the retries have a steady one. Raises the errors of
    `KafkaReader` and `KafkaTransactions`.
    """
    reader = KafkaReader(kafka, group, topics, instance=instance or None)
    try:
        writer = f"{group}.{instance or unique_name()}"
        transactions = KafkaTransactions(kafka, writer, reader, Watchdog(stop))
        try:
            yield TransactionalPorts(
                reader,
                transactions,
                now_ms,
                AbortBackoff(kafka.lost_timeout_s, steady_ms, stop.wait),
                retry_until(stop, kafka.lost_timeout_s),
            )
        finally:
            transactions.close()
    finally:
        reader.close()
