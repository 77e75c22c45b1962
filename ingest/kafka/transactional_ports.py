"""Clients, clock and retries of a loop that reads from Kafka, works, and writes in transactions.

The joiner, the scorer and evaluation's feeder are such loops. Each takes all that is at its edge as
one value, so that a test replaces it as a whole (`ingest.kafka.fakes.memory_ports`). A process
opens the real clients with `ingest.runtime.open_ports`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from tenacity import Retrying

    from headrace.ingest.kafka.protocols import BlockReader
    from headrace.ingest.kafka.retry import AbortBackoff
    from headrace.ingest.kafka.transactions import Transactions

ReaderT_co = TypeVar("ReaderT_co", bound="BlockReader", covariant=True)


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
