"""Opens and closes the Kafka clients of a process that works in transactions."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.ingest.kafka import (
    AbortBackoff,
    KafkaReader,
    KafkaTransactions,
    TransactionalPorts,
    Watchdog,
    retry_until,
)
from headrace.ingest.runtime.clock import steady_ms
from headrace.ingest.runtime.status import unique_name

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from headrace.ingest.kafka import KafkaSettings


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
