"""Opens and closes the Kafka clients of a process that works in transactions."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.retry import AbortBackoff, retry_until
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.transactional_ports import TransactionalPorts
from headrace.ingest.kafka.transactions import KafkaTransactions
from headrace.ingest.kafka.watchdog import Watchdog
from headrace.ingest.runtime.clock import steady_ms
from headrace.ingest.runtime.status import unique_name


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
