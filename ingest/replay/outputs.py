"""Writes the events of a replay to Kafka: plainly, or resumably after a kill.

A resumable replay writes transactions. With its messages, each transaction writes how many lines
of the logs were taken, to the compacted topic `replays`. So messages and progress always agree. A
restarted replay first waits until the last transaction of the killed one has ended, and then reads
the count.

*Refused:* the count as a committed offset alone. Kafka forgets the offsets of a group that was
empty for a week, and the replay would then send its log again. It is committed as well, for
dashboards, and because it shows that `replays` lost records.

The count is true only while Kafka has the lines. The record therefore names the ids of the event
topics, and how far their logs reached at the transaction before. A restart compares these, and the
count in `replays` with the committed one. A replay whose lines are gone stops: the rest alone would
look like a whole log.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import BadCheckpoint, KafkaUnreachable, OffsetGone, StreamError
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Committed, ReadPosition, Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.reading.log_bounds import log_offsets
from headrace.ingest.kafka.reading.log_truncation import topic_ids, truncated
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import REPLAYS_TOPIC, ensure_topics, replays_spec
from headrace.ingest.kafka.transactions import KafkaTransactions, Outgoing
from headrace.ingest.kafka.watchdog import Watchdog
from headrace.runtime.counted_nouns import counted


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
    """The value of a record in `replays`."""

    of: str
    """Digest of the files."""
    complete: bool
    taken: int
    """Lines of the logs."""
    topic_ids: dict[str, str]
    """Ids of the event topics by name."""
    ends: list[tuple[Source, ReadPosition]]
    """Ends of their logs before this transaction."""


class ResumableEventWriter:
    """Writes in transactions that also commit the count of lines.

    Raises BadCheckpoint if a replay with this name was of other files, and OffsetGone if Kafka lost
    lines that it sent.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        name: str,
        sources: Sequence[Source],
        what: Sequence[str],
        stop: threading.Event,
    ) -> None:
        """sources: every partition of the event topics. what: identifies the files."""
        self._settings, self._name = settings, name
        ensure_topics(settings, [replays_spec()])
        group = f"headrace.replay.{name}"
        self._digest = hashlib.blake2b("\n".join(what).encode(), digest_size=8).hexdigest()
        self._sources, self._place = sources, sources[0]
        self._admin = AdminClient(settings.connection())
        self._offsets = KafkaOffsets(settings, group)
        self._messages: list[Outgoing] = []
        self._ends: list[tuple[Source, ReadPosition]] = []
        self._written: tuple[int, bool] | None = None
        """Count and completeness of the last commit; None after a failure."""
        try:
            # before the count is read, this fences a living predecessor and ends its transaction
            self._transactions = KafkaTransactions(settings, group, self._offsets, Watchdog(stop))
            topics = {source.topic for source in sources}
            self._topic_ids = topic_ids(settings, self._admin, sorted(topics))
            self.resumed_at, self.complete = self._read(what)
            self._ends = self._reached()
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
        self._write(taken, complete)

    def _write(self, taken: int, complete: bool) -> None:
        self._written = None
        checkpoint = _ReplayCheckpoint(self._digest, complete, taken, self._topic_ids, self._ends)
        value = msgspec.json.encode(checkpoint)
        progress = Outgoing(Source(REPLAYS_TOPIC, 0), value, self._name.encode())
        self._transactions.write([*self._messages, progress], {self._place: Committed(taken, "")})
        self._messages.clear()
        self._ends = self._reached()
        self._written = taken, complete

    def close(self) -> None:
        """Write the ends that the last transaction reached, and disconnect."""
        if self._written is not None:
            with suppress(StreamError):
                self._write(*self._written)
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
        self._check_logs(checkpoint)
        return checkpoint.taken, checkpoint.complete

    def _reached(self) -> list[tuple[Source, ReadPosition]]:
        """Return the ends of the logs; the last ones known if Kafka does not answer."""
        try:
            return list(log_offsets(self._settings, self._admin, self._sources).items())
        except KafkaUnreachable:
            return self._ends

    def _check_logs(self, checkpoint: _ReplayCheckpoint) -> None:
        """Check that Kafka still has the lines sent so far. Raises OffsetGone."""
        sent = checkpoint.topic_ids
        lost = [f"topic {topic} was created again" for topic in recreated(sent, self._topic_ids)]
        if not lost:
            reached = {at for at in checkpoint.ends if at[1].offset and at[1].leader_epoch >= 0}
            cut = truncated(self._settings, dict(reached)) if reached else []
            lost = [f"{topic}/{number} lost records" for topic, number in cut]
        if lost:
            raise OffsetGone(
                f"expected the {counted(checkpoint.taken, 'line')} that the replay {self._name!r} "
                f"sent, got logs without some of them: {'; '.join(lost)}. To send every line "
                "again, choose another name"
            )

    def _last(self) -> _ReplayCheckpoint | None:
        key, value = self._name.encode(), b""
        for record in read_all(self._settings, REPLAYS_TOPIC):
            if record.key == key:
                value = record.value
        saved = msgspec.json.decode(value, type=_ReplayCheckpoint) if value else None
        committed = self._transactions.committed([self._place]).get(self._place)
        if committed is not None and (saved is None or saved.taken < committed.offset):
            raise OffsetGone(
                f"expected the progress of the replay {self._name!r} in topic {REPLAYS_TOPIC}, "
                f"{counted(committed.offset, 'line')} as in its committed offset, got "
                f"{saved.taken if saved else 'none'}: the topic lost records. To send every line "
                "again, choose another name"
            )
        return saved


def recreated(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the topics whose id is no longer the one of before."""
    return sorted(topic for topic, found in now.items() if before.get(topic, found) != found)
