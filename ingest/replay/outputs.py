"""Where a replay sends its lines: straight to Kafka, or so that it can go on after a kill.

A resumable replay writes transactions. Each commits, with its messages, how many lines of the logs
were taken: as an offset of a group of the replay's own, on a partition that merely has to exist. So
what was sent and how far it came are one truth, and whoever starts the replay again, while the dead
one's last transaction may still be open, reads the count only after that has ended.
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
    """Takes messages, and notes how many lines they came from."""

    resumed_at: int
    """Lines that were taken before."""
    complete: bool
    """Whether all was sent before."""

    def send(self, target: Source, value: bytes, key: bytes | None) -> None:
        """Take a message. Raises what Kafka said of an earlier one."""

    def commit(self, taken: int, *, complete: bool = False) -> None:
        """Have readers see what was sent; `taken` lines it came from."""

    def close(self) -> None:
        """Disconnect. What was sent and not committed may be lost."""


class PlainEventWriter:
    """Straight to Kafka: seen at once, and begun anew by whoever starts again."""

    def __init__(self, settings: KafkaSettings, linger_ms: int) -> None:
        self.resumed_at, self.complete = 0, False
        self._writer = KafkaWriter(settings, linger_ms)

    def send(self, target: Source, value: bytes, key: bytes | None) -> None:
        """Queue a message."""
        self._writer.send(target, value, key)

    def commit(self, taken: int, *, complete: bool = False) -> None:  # noqa: ARG002
        """Wait until Kafka has all of it, at the end; until then it has what it has."""
        if complete:
            self._writer.flush()

    def close(self) -> None:
        """Flush and disconnect."""
        self._writer.close()


class _ReplayCheckpoint(msgspec.Struct):
    """The metadata of the committed offset."""

    of: str
    """Digest of what is replayed."""
    complete: bool = False


class ResumableEventWriter:
    """In transactions that hold the count of lines.

    Raises BadCheckpoint if a replay of this name was of something else.
    """

    def __init__(self, settings: KafkaSettings, name: str, topic: str, what: Sequence[str]) -> None:
        """`topic` is any that exists; `what` tells this replay from another."""
        group = f"headrace.replay.{name}"
        self._digest = hashlib.blake2b("\n".join(what).encode(), digest_size=8).hexdigest()
        self._place = Source(topic, 0)
        self._offsets = KafkaOffsets(settings, group)
        self._messages: list[Outgoing] = []
        self._taken = 0
        try:
            # fences a predecessor that still lives, and ends what it left open, before we read
            self._transactions = KafkaTransactions(settings, group, self._offsets)
            self.resumed_at, self.complete = self._read(name, what)
        except BaseException:
            self._offsets.close()
            raise

    def send(self, target: Source, value: bytes, key: bytes | None) -> None:
        """Keep a message for the next commit."""
        self._messages.append(Outgoing(target, value, key))

    def commit(self, taken: int, *, complete: bool = False) -> None:
        """Write what was kept, with the count, in one transaction."""
        if not self._messages and not complete:
            return
        note = msgspec.json.encode(_ReplayCheckpoint(self._digest, complete)).decode()
        self._transactions.write(self._messages, {self._place: Committed(taken, note)})
        self._messages.clear()

    def close(self) -> None:
        """Disconnect."""
        self._transactions.close()
        self._offsets.close()

    def _read(self, name: str, what: Sequence[str]) -> tuple[int, bool]:
        found = self._transactions.committed([self._place]).get(self._place)
        if found is None:
            return 0, False
        note = msgspec.json.decode(found.metadata, type=_ReplayCheckpoint)
        if note.of != self._digest:
            raise BadCheckpoint(
                f"expected the replay {name!r} to go on with {', '.join(what)}, found that it was "
                "begun with other files: choose another name"
            )
        return found.offset, note.complete
