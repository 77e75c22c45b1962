"""The loop of a relay: logs of the parameter server in, blocks of final rows to Kafka.

`RelayLoop.step` is the whole loop:

1. follow   read the logs into a replica, and note the rows that changed
2. rebase   if due: the next bucket in turn gets a base, all its rows, with the next blocks
3. write    if an interval has passed: the blocks of all buckets, in transactions of some megabytes

The loop stores nothing. It continues from the last blocks in the topic, see `pserver.relay`. If a
write fails, it is unknown which of its blocks are in the topic. Their buckets then get a base,
which is right after any block.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from headrace.ingest.errors import KafkaUnreachable, TransactionAborted
from headrace.ingest.kafka.transactions import Outgoing, Transactions
from headrace.pserver.relay.log_relay import LogRelay
from headrace.pserver.relay.relay_section import RelayedColumns, RelayForm
from headrace.pserver.replica.replica import Replica
from headrace.pserver.store import Shape, Store
from headrace.runtime.counted_nouns import counted
from headrace.serving.relaying.relay_topic import last_positions, relay_source

log = logging.getLogger(__name__)

_WRITE_BYTES = 8 << 20
"""Most bytes of a transaction, unless one block is larger."""


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """When a relay writes."""

    interval_ms: int = 200
    """Milliseconds between two writes: a row that changed several times is written once. Adds to
    the age of answers."""
    base_interval_ms: int = 600_000
    """Milliseconds in which every bucket gets a base. New readers read twice as much at most."""


class RelayLoop:
    """Relays one model. Not safe for use from several threads."""

    def __init__(
        self,
        store: Store,
        shape: Shape,
        transactions: Transactions,
        policy: RelayPolicy,
        now_ms: Callable[[], int],
        form: RelayForm | None = None,
    ) -> None:
        """Read the topic, to continue after its last blocks. Raises KafkaUnreachable.

        form: what of rows to write; None: rows as the logs have them.
        """
        self._transactions, self._policy, self._now_ms = transactions, policy, now_ms
        self._target = relay_source(shape.model)
        self.replica = Replica(store, shape)
        columns = form or RelayedColumns.all(shape.width)
        self._relay = LogRelay(store, self.replica, columns)
        self._relay.resume(last_positions(transactions.history(self._target)))
        self._next_base = 0
        self._write_at_ms = now_ms()
        self._base_at_ms = now_ms() + self._base_pause_ms
        self.blocks_written = 0
        self.failed_writes = 0
        self._failed: set[int] = set()
        self._unwritten_since_ms: int | None = None

    @property
    def _base_pause_ms(self) -> int:
        return max(1, self._policy.base_interval_ms // self.replica.shape.buckets)

    def step(self) -> bool:
        """Run every step once; return whether blocks were written.

        Raises Fenced if another relay of this model has started, WriteRefused, and every StoreError
        but Unreachable.
        """
        changes = self._relay.step()
        now = self._now_ms()
        if changes and self._unwritten_since_ms is None:
            self._unwritten_since_ms = now
        if now >= self._base_at_ms:
            self._relay.rebase(self._next_base)
            self._next_base = (self._next_base + 1) % self.replica.shape.buckets
            self._base_at_ms = now + self._base_pause_ms
        if now < self._write_at_ms:
            return False
        self._write_at_ms = now + self._policy.interval_ms
        return self._write()

    def wait_s(self) -> float:
        """Return the time until the next write."""
        return max(0.0, (self._write_at_ms - self._now_ms()) / 1000.0)

    @property
    def unwritten_s(self) -> float:
        """Time since the relay read the oldest change that is not in the topic; 0 without one."""
        since_ms = self._unwritten_since_ms
        return 0.0 if since_ms is None else (self._now_ms() - since_ms) / 1000.0

    def _write(self) -> bool:
        before = self.blocks_written
        part: list[tuple[int, bytes]] = []
        for bucket, blob in self._relay.blocks():
            if part and sum(len(each) for _, each in part) + len(blob) > _WRITE_BYTES:
                self._send(part)
                part = []
            part.append((bucket, blob))
        if part:
            self._send(part)
        if not self._failed:
            self._unwritten_since_ms = None
        while self._failed:  # only now: a bucket's position moves on with its last block
            self._relay.rebase(self._failed.pop())
        return self.blocks_written > before

    def _send(self, blocks: list[tuple[int, bytes]]) -> None:
        messages = [Outgoing(self._target, blob, b"%d" % bucket) for bucket, blob in blocks]
        try:
            self._transactions.write(messages, {})
        except (TransactionAborted, KafkaUnreachable) as error:
            log.warning("a write of the relay failed, %s: %s", counted(len(blocks), "block"), error)
            self.failed_writes += 1
            for bucket, _ in blocks:
                self._failed.add(bucket)
            return
        self.blocks_written += len(blocks)
