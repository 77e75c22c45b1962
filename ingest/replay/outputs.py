"""Writes the events of a replay to Kafka: plainly, or resumably after a kill.

A resumable replay writes transactions. With its messages, each transaction writes how many lines
of the logs were taken, to the compacted topic `replays`. So messages and progress always agree. A
restarted replay first waits until the last transaction of the killed one has ended, and then reads
the count.

*Refused:* the count as a committed offset alone, as older versions had it. Kafka forgets the
offsets of a group that was empty for a week, and the replay would then send its log again. It is
still committed, for dashboards and for these versions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.kafka import (
    REPLAYS_TOPIC,
    Committed,
    KafkaOffsets,
    KafkaTransactions,
    KafkaWriter,
    Outgoing,
    Source,
    Watchdog,
    ensure_topics,
    read_all,
    replays_spec,
)

if TYPE_CHECKING:
    import threading
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
    """The value of a record in `replays`, and the metadata of the committed offset."""

    of: str
    """Digest of the files."""
    complete: bool = False
    taken: int = -1
    """Lines of the logs; -1 in the metadata of older versions, whose offset is the count."""


class ResumableEventWriter:
    """Writes in transactions that also commit the count of lines.

    Raises BadCheckpoint if a replay with this name was of other files.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        name: str,
        topic: str,
        what: Sequence[str],
        stop: threading.Event,
    ) -> None:
        """topic: any that exists. what: identifies the files of this replay."""
        self._settings, self._name = settings, name
        ensure_topics(settings, [replays_spec()])
        group = f"headrace.replay.{name}"
        self._digest = hashlib.blake2b("\n".join(what).encode(), digest_size=8).hexdigest()
        self._place = Source(topic, 0)
        self._offsets = KafkaOffsets(settings, group)
        self._messages: list[Outgoing] = []
        self._taken = 0
        try:
            # before the count is read, this fences a living predecessor and ends its transaction
            self._transactions = KafkaTransactions(settings, group, self._offsets, Watchdog(stop))
            self.resumed_at, self.complete = self._read(what)
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
        checkpoint = msgspec.json.encode(_ReplayCheckpoint(self._digest, complete, taken))
        progress = Outgoing(Source(REPLAYS_TOPIC, 0), checkpoint, self._name.encode())
        offsets = {self._place: Committed(taken, checkpoint.decode())}
        self._transactions.write([*self._messages, progress], offsets)
        self._messages.clear()

    def close(self) -> None:
        """Disconnect."""
        self._transactions.close()
        self._offsets.close()

    def _read(self, what: Sequence[str]) -> tuple[int, bool]:
        checkpoint = self._last()
        if checkpoint is None:
            return 0, False
        if checkpoint.of != self._digest:
            raise BadCheckpoint(
                f"expected the replay {self._name!r} to continue with {', '.join(what)}, got other "
                "files than it began with: choose another name"
            )
        return checkpoint.taken, checkpoint.complete

    def _last(self) -> _ReplayCheckpoint | None:
        key, value = self._name.encode(), b""
        for record in read_all(self._settings, REPLAYS_TOPIC):
            if record.key == key:
                value = record.value
        if value:
            return msgspec.json.decode(value, type=_ReplayCheckpoint)
        found = self._transactions.committed([self._place]).get(self._place)
        if found is None:
            return None
        older = msgspec.json.decode(found.metadata, type=_ReplayCheckpoint)
        return msgspec.structs.replace(older, taken=found.offset)
