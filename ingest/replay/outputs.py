"""Writes the events of a replay to Kafka: plainly, or resumably after a kill.

A resumable replay writes transactions. With its messages, each transaction commits how many lines
of the logs were taken: as an offset of the replay's own group, on a partition that only has to
exist. So messages and progress always agree. A restarted replay first waits until the last
transaction of the killed one has ended, and then reads the count.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.kafka import (
    Committed,
    KafkaOffsets,
    KafkaTransactions,
    KafkaWriter,
    Outgoing,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.ingest.kafka import KafkaSettings


class EventWriter(Protocol):
    """Writes messages, and records how many lines they came from."""

    resumed_at: int
    """Lines taken by an earlier run."""
    complete: bool
    """Whether an earlier run sent everything."""

    def send(self, target: Source, value: bytes, key: bytes | None) -> None:
        """Queue a message. Raises the error of an earlier one."""

    def commit(self, taken: int, *, complete: bool = False) -> None:
        """Make the messages visible to readers; they came from `taken` lines."""

    def close(self) -> None:
        """Disconnect. Uncommitted messages may be lost."""


class PlainEventWriter:
    """Writes directly: messages are visible at once, and a restart begins from the start."""

    def __init__(self, settings: KafkaSettings, linger_ms: int) -> None:
        self.resumed_at, self.complete = 0, False
        self._writer = KafkaWriter(settings, linger_ms)

    def send(self, target: Source, value: bytes, key: bytes | None) -> None:
        """Queue a message."""
        self._writer.send(target, value, key)

    def commit(self, taken: int, *, complete: bool = False) -> None:  # noqa: ARG002
        """Wait until Kafka has every message, if `complete`; else do nothing."""
        if complete:
            self._writer.flush()

    def close(self) -> None:
        """Flush and disconnect."""
        self._writer.close()


class _ReplayCheckpoint(msgspec.Struct):
    """The metadata of the committed offset."""

    of: str
    """Digest of the files."""
    complete: bool = False


class ResumableEventWriter:
    """Writes in transactions that also commit the count of lines.

    Raises BadCheckpoint if a replay with this name was of other files.
    """

    def __init__(self, settings: KafkaSettings, name: str, topic: str, what: Sequence[str]) -> None:
        """topic: any that exists. what: identifies the files of this replay."""
        group = f"headrace.replay.{name}"
        self._digest = hashlib.blake2b("\n".join(what).encode(), digest_size=8).hexdigest()
        self._place = Source(topic, 0)
        self._offsets = KafkaOffsets(settings, group)
        self._messages: list[Outgoing] = []
        self._taken = 0
        try:
            # before the count is read, this fences a living predecessor and ends its transaction
            self._transactions = KafkaTransactions(settings, group, self._offsets)
            self.resumed_at, self.complete = self._read(name, what)
        except BaseException:
            self._offsets.close()
            raise

    def send(self, target: Source, value: bytes, key: bytes | None) -> None:
        """Keep a message for the next commit."""
        self._messages.append(Outgoing(target, value, key))

    def commit(self, taken: int, *, complete: bool = False) -> None:
        """Write the kept messages and the count in one transaction."""
        if not self._messages and not complete:
            return
        checkpoint = msgspec.json.encode(_ReplayCheckpoint(self._digest, complete)).decode()
        self._transactions.write(self._messages, {self._place: Committed(taken, checkpoint)})
        self._messages.clear()

    def close(self) -> None:
        """Disconnect."""
        self._transactions.close()
        self._offsets.close()

    def _read(self, name: str, what: Sequence[str]) -> tuple[int, bool]:
        found = self._transactions.committed([self._place]).get(self._place)
        if found is None:
            return 0, False
        checkpoint = msgspec.json.decode(found.metadata, type=_ReplayCheckpoint)
        if checkpoint.of != self._digest:
            raise BadCheckpoint(
                f"expected the replay {name!r} to continue with {', '.join(what)}, got other files "
                "than it began with: choose another name"
            )
        return found.offset, checkpoint.complete
