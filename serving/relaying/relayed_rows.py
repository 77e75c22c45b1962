"""The rows of a relay in a server, in place of a replica of the logs.

`Follower` polls them like a `Replica`. Each poll reads what Kafka has and applies the blocks. A new
server reads the topic from its first message, and is complete once every bucket has had a base. A
gap, which is a block that does not continue the rows, leaves the rows as they are until the next
base, and the bucket is reported as stale.

While Kafka does not answer, the rows stay as they are and grow old, as with a parameter server that
does not answer.
"""

import time
from collections.abc import Callable

from headrace.ingest.errors import OffsetGone, StreamError
from headrace.ingest.kafka.protocols import Reader, Record
from headrace.ingest.kafka.reading.consumer import KafkaReader, poll_from_first
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.learner.models.final_rows import FinalRows
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import StoreError, Unreachable
from headrace.pserver.relay.relayed_replica import Gap, Relayed, RelayedReplica
from headrace.pserver.replica.replica import BucketRecopied, Change, Folded, Stale
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.rows.table import RowTable
from headrace.pserver.store import Shape
from headrace.serving.relaying.relay_topic import relay_topic

_OPEN_AGAIN_S = 1.0
"""Pause after a reader could not be opened, for example because the topic does not exist yet."""


class RelayedRows(RelayedReplica):
    """All rows of a model, from the topic of its relay. For one thread; others read the table."""

    def __init__(
        self,
        shape: Shape,
        open_reader: Callable[[], Reader],
        now_s: Callable[[], float] = time.monotonic,
        table: RowTable | None = None,
        restored: Callable[[FoldedRows], FoldedRows] | None = None,
    ) -> None:
        """open_reader: opens a reader of the topic, without a group. table: holds the rows.

        restored: returns rows whose weights are the final weights given; None: they are refused.
        """
        super().__init__(shape, table, restored)
        self._now_s = now_s
        self._refused: StreamError | None = None
        self._open_at_s = 0.0
        self._open_reader = open_reader
        self._reader: Reader | None = None
        self._known: set[int] = set()
        self._gaps: dict[int, StoreError] = {}
        self.bytes_read = 0

    def poll(self, limit: int) -> list[Change]:  # noqa: ARG002  (Kafka's client bounds a poll)
        """Read and apply blocks; return the changes in order.

        All buckets are stale while Kafka does not answer or has no such topic. Raises StoreError if
        the topic has something else than blocks of this model.
        """
        changes: list[Change] = []
        try:
            for event in poll_from_first(self._opened(), 0.0):
                if isinstance(event, Record):
                    changes += self._taken(event.value)
        except OffsetGone:  # Kafka deleted blocks that were not read: bases follow
            self.close()
            self._reader = None
        except StreamError as error:
            unreachable = Unreachable(f"topic of the relay (`headrace serving relay`): {error}")
            changes += [Stale(bucket, unreachable) for bucket in self.buckets]
        changes += [Stale(bucket, error) for bucket, error in self._gaps.items()]
        return changes

    def _opened(self) -> Reader:
        """Return the reader. After a failure, it is opened again a second later."""
        if self._reader is None:
            if self._refused is not None and self._now_s() < self._open_at_s:
                raise self._refused
            self._open_at_s = self._now_s() + _OPEN_AGAIN_S
            try:
                self._reader, self._refused = self._open_reader(), None
            except StreamError as error:
                self._refused = error
                raise
        return self._reader

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()

    def _taken(self, blob: bytes) -> list[Change]:
        self.bytes_read += len(blob)
        taken = self.take(blob)
        if isinstance(taken, Gap):
            self._gaps[taken.bucket] = StoreError(
                f"bucket {taken.bucket}: expected a block that continues version "
                f"{taken.expected.version}, got one from version {taken.got.version}; "
                "waiting for the next base of the relay"
            )
            return []
        if taken is None:
            return []
        first = taken.bucket not in self._known
        self._known.add(taken.bucket)
        mended = self._gaps.pop(taken.bucket, None) is not None
        return [BucketRecopied(taken.bucket) if first or mended else self._folded(taken)]

    def _folded(self, taken: Relayed) -> Folded:
        """Return the block as an entry of the log would be reported; its rows are applied."""
        header = taken.header
        entry = EntryHeader(
            header.width, header.rows, header.event_ms, header.append_ms, header.reached
        )
        nothing = RowDeltas.empty(header.width)
        return Folded(taken.bucket, header.stop.version, entry, nothing, taken.size_bytes)


def open_relayed_rows(
    spec: ModelSpec, shape: Shape, kafka: KafkaSettings, table: RowTable | None = None
) -> RelayedRows:
    """Return the rows of a model from its relay, with or without final weights."""
    restored = FinalRows(spec).restored
    return RelayedRows(shape, topic_reader(kafka, shape.model), table=table, restored=restored)


def topic_reader(kafka: KafkaSettings, model: str) -> Callable[[], Reader]:
    """Return a function that opens a reader of the topic of a model's relay, without a group."""
    return lambda: KafkaReader(kafka, None, [relay_topic(model)])
