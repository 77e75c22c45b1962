"""`Reader` on Kafka: a consumer whose partitions begin only where they are told to.

A partition that the group gives us is taken paused, and nothing of it is delivered before `start`
says from which offset: neither the joiner nor a learner goes by Kafka's committed offset alone.

How the group is joined, and when a member that Kafka calls fenced is not, is
`ingest.kafka.consumer_group`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import Fenced, KafkaUnreachable, MissingTopic
from headrace.ingest.kafka.consumer_group import member_of_instance, membership, resumes_at, seek
from headrace.ingest.kafka.error_translation import translate, translated, unreachable
from headrace.ingest.kafka.offset_store import committed_offsets
from headrace.ingest.kafka.protocols import (
    AtEnd,
    Happening,
    MessageBlock,
    PartitionAssigned,
    PartitionRevoked,
    Source,
)
from headrace.ingest.kafka.retry import retry_for
from headrace.ingest.kafka.topics import LARGEST_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.ingest.kafka.settings import KafkaSettings

    _Place = tuple[str | None, int | None]

log = logging.getLogger(__name__)

_LARGEST_POLL = 5_000
"""Records a poll returns at most: some 10 ms of work, so that a stop or a rebalance is prompt."""

_FETCH_WAIT_MS = 10
"""A fetch is answered at once when there is something in any partition. Only after an empty answer
is the end of a partition known that ends in a transaction marker, and only then a seek heeded."""

_HARMLESS = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError.REBALANCE_IN_PROGRESS})  # noqa: SLF001
"""The client rejoins by itself; what we lost comes as `PartitionRevoked`."""


class KafkaReader:
    """Records of the partitions that fall to this process.

    With `group=None` every partition of the topics is ours and no group is joined. Raises
    KafkaUnreachable when no broker answers, MissingTopic, NotAllowed.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        group: str | None,
        topics: Sequence[str],
        instance: str | None = None,
        *,
        read_committed: bool = True,
    ) -> None:
        self._settings = settings
        self._group, self._instance, self._topics = group, instance, list(topics)
        self._member: str | None = None
        """As which Kafka knew us when it gave us our partitions."""
        self._lapsed = False  # called fenced, though nobody took over
        self._asking = threading.Lock()
        """Held to exchange the consumer, and to ask it what the thread of the metrics asks too."""
        self._sources: dict[tuple[str | None, int | None], Source] = {}  # ours
        self._started: dict[Source, int] = {}
        """Those that deliver, and the first offset not yet delivered."""
        self._paused: set[Source] = set()
        self._changes: list[PartitionAssigned | PartitionRevoked] = []
        self._told_ends: dict[Source, int] = {}
        self._down_since_s: float | None = None
        self._read_committed = read_committed
        self._consumer = self._connected()
        self._admin = AdminClient(settings.connection())
        try:
            partitions = self._check_topics(topics)
            if group is None:
                self._gain(partitions)
            else:
                self._join()
        except BaseException:
            self._consumer.close()
            raise

    # ---------------------------------------------------------------- the protocol

    def poll(self, timeout_s: float) -> list[Happening]:
        """Return what happened, waiting up to `timeout_s` only while there is nothing.

        Raises KafkaUnreachable when brokers were down for longer than `lost_timeout_s`, OffsetGone,
        Fenced, NotAllowed, MissingTopic.
        """
        happened: list[Happening] = []
        for each in self.poll_blocks(timeout_s):
            if isinstance(each, MessageBlock):
                happened += each.records()
            else:
                happened.append(each)
        return happened

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """Return what `poll` would, in blocks."""
        with translated("reading", self._settings.bootstrap):
            # consume() would wait for a full batch; poll() waits for the first message alone
            first = self._consumer.poll(0.0 if self._changes else timeout_s)
            messages = [] if first is None else [first]
            messages += self._consumer.consume(_LARGEST_POLL, 0.0)
        happened = self._happenings(messages)
        if self._lapsed:
            self._join_again()
            happened = []
        changes, self._changes = self._changes, []
        if self._down_since_s is not None:
            self._check_down(bool(happened))
        return [*changes, *happened]

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets on, dropping what was fetched of them before."""
        for source, offset in offsets.items():
            if source not in self._sources.values():
                continue  # lost again in the meantime: `PartitionRevoked` is on its way
            self._started[source] = offset
            self._seek(source)
            self._told_ends.pop(source, None)
        begun = [source for source in offsets if source in self._started]
        self._consumer.resume([_partition(each) for each in begun if each not in self._paused])

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing of these until `resume`: they run ahead of the others."""
        ours = [source for source in sources if source in self._started]
        self._paused.update(ours)
        self._consumer.pause([_partition(source) for source in ours])

    def resume(self, sources: Iterable[Source]) -> None:
        """Take `pause` back."""
        ours = [source for source in sources if source in self._started]
        self._paused.difference_update(ours)
        self._consumer.resume([_partition(source) for source in ours])

    def held(self, source: Source) -> tuple[int, int]:
        """Return the first offset the source still holds and the first it does not yet hold.

        To a reader of committed records a source ends at its last stable offset: where an open
        transaction begins, or one committed a moment ago whose marker is not yet there.
        """
        return retry_for(self._settings.connect_timeout_s)(self._held, source)

    def topic_id(self, topic: str) -> str:
        """Return the identity that Kafka gave the topic: another one after it was made again."""
        # asked before every push: a restart of the broker is waited for
        return retry_for(self._settings.lost_timeout_s)(self._topic_id, topic)

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Tell Kafka how far we are, without waiting: for lag dashboards alone."""
        positions = [
            TopicPartition(source.topic, source.partition, offset)
            for source, offset in offsets.items()
            if source in self._started
        ]
        if positions:
            self._consumer.commit(offsets=positions, asynchronous=True)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    # ---------------------------------------------------------------- for transactions

    def group_metadata(self) -> object:
        """Return who we are in the group, so that a transaction of a member thrown out fails."""
        return self._consumer.consumer_group_metadata()

    def committed(self, sources: Iterable[Source]) -> dict[Source, tuple[int, str]]:
        """Return the group's committed offset and metadata of each source that has one.

        Waits for a transaction that is still under way on them. Raises KafkaUnreachable.
        """
        return committed_offsets(self._consumer, self._settings, sources)

    # ---------------------------------------------------------------- inside

    def _topic_id(self, topic: str) -> str:
        timeout_s = self._settings.connect_timeout_s
        with translated(f"asking for the identity of topic {topic}", self._settings.bootstrap):
            asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)
            return str(asked[topic].result().topic_id)

    def _held(self, source: Source) -> tuple[int, int]:
        timeout_s = self._settings.connect_timeout_s
        with self._asking, translated(f"asking what {source} holds", self._settings.bootstrap):
            low, high = self._consumer.get_watermark_offsets(_partition(source), timeout=timeout_s)
        return low, high

    def _seek(self, source: Source) -> None:
        seek(self._consumer, source, self._started[source], self._settings.bootstrap)

    def _connected(self) -> Consumer:
        config = {
            **self._settings.connection(),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if self._read_committed else "read_uncommitted",
            "auto.offset.reset": "error",  # a gap is never jumped over in silence
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": 5,  # a full queue is looked at again at once
            "fetch.message.max.bytes": 2 << 20,
            "receive.message.max.bytes": 100 << 20,
            "message.max.bytes": LARGEST_MESSAGE_BYTES,
            "queued.max.messages.kbytes": 64 << 10,
            "error_cb": self._on_error,
            **membership(self._group, self._instance),
        }
        with translated("making a consumer", self._settings.bootstrap):
            return Consumer(config)

    def _join(self) -> None:
        self._consumer.subscribe(
            self._topics,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def _join_again(self) -> None:
        """Exchange the consumer, which will do nothing more, for one that joins anew."""
        with self._asking:
            lapsed, self._consumer = self._consumer, self._connected()
            lapsed.close()
        self._on_revoke(lapsed, [_partition(source) for source in self._sources.values()])
        self._lapsed = False
        self._join()

    def _taken_over(self) -> bool:
        """Whether somebody else is a member of the group under the name of our instance."""
        if self._group is None or self._instance is None:
            return True
        asking = retry_for(self._settings.lost_timeout_s)
        member = asking(member_of_instance, self._settings, self._group, self._instance)
        return member not in (None, self._member)

    def _check_topics(self, topics: Sequence[str]) -> list[TopicPartition]:
        timeout_s = self._settings.connect_timeout_s
        with translated("connecting", self._settings.bootstrap):
            metadata = self._consumer.list_topics(timeout=timeout_s)
        missing = [topic for topic in topics if topic not in metadata.topics]
        if missing:
            raise MissingTopic(
                f"expected topics {', '.join(topics)} at {self._settings.bootstrap}, "
                f"found no {', '.join(missing)}"
            )
        return [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in sorted(metadata.topics[topic].partitions)
        ]

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._gain(partitions)

    def _gain(self, partitions: list[TopicPartition]) -> None:
        # any offset does: nothing is fetched before `start` seeks and resumes
        placed = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in partitions]
        if self._instance is not None:
            self._member = self._consumer.memberid()
            self._consumer.assign(placed)
        else:
            self._consumer.incremental_assign(placed)
        self._consumer.pause(placed)
        for partition in partitions:
            source = Source(partition.topic, partition.partition)
            self._sources[source.topic, source.partition] = source
            self._changes.append(PartitionAssigned(source))

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            source = self._sources.pop((partition.topic, partition.partition), None)
            if source is not None:
                self._started.pop(source, None)
                self._paused.discard(source)
                self._told_ends.pop(source, None)
                self._changes.append(PartitionRevoked(source))

    def _happenings(self, messages: Sequence[Message]) -> list[MessageBlock | AtEnd]:
        """Return messages as blocks and ends, less those of sources not ours or not started."""
        grouped: dict[_Place, list[Message]] = {}
        ends: dict[_Place, int] = {}
        # the hottest loop of every reader: attributes are taken by calls that stay in C
        columns = zip(
            messages,
            map(Message.error, messages),
            map(Message.topic, messages),
            map(Message.partition, messages),
            strict=True,
        )
        for message, error, topic, partition in columns:
            place = topic, partition
            if error is not None:
                if self._is_end(error, self._sources.get(place)):
                    ends[place] = message.offset() or 0
                continue
            if ends:
                ends.pop(place, None)
            if place in grouped:
                grouped[place].append(message)
            else:
                grouped[place] = [message]
        happened: list[MessageBlock | AtEnd] = []
        for place, group in grouped.items():
            source = self._sources.get(place)
            if source is not None and source in self._started:
                block = _block(source, group)
                if not resumes_at(block, self._started[source]):
                    ends.pop(place, None)
                    self._seek(source)
                    continue
                happened.append(block)
                end = self._started[source] = int(block.offsets[-1]) + 1
                # Kafka had no more when it answered; the client says so after another answer only
                held = self._consumer.get_watermark_offsets(_partition(source), cached=True)
                if end == held[1]:
                    ends.setdefault(place, end)
        for place, offset in ends.items():
            source = self._sources[place]
            if self._told_ends.get(source) != offset:
                self._told_ends[source] = offset
                happened.append(AtEnd(source, offset))
        return happened

    def _is_end(self, error: KafkaError, source: Source | None) -> bool:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return source in self._started
        failure = translate(error, f"reading {source or 'the group'}", self._settings.bootstrap)
        if error.code() in _HARMLESS or isinstance(failure, KafkaUnreachable):
            log.warning("%s", failure)
            return False
        if isinstance(failure, Fenced) and not self._taken_over():
            log.warning("Kafka forgot us while it was away, joining again: %s", failure)
            self._lapsed = True
            return False
        raise failure

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._down_since_s = self._down_since_s or time.monotonic()
        log.warning("Kafka client at %s: %s", self._settings.bootstrap, error.str())

    def _check_down(self, heard: bool) -> None:
        """Brokers went away: has one come back, or is it too long?"""
        assert self._down_since_s is not None
        down_s = time.monotonic() - self._down_since_s
        if heard:
            self._down_since_s = None
        elif down_s > self._settings.lost_timeout_s:
            try:
                self._consumer.list_topics(timeout=self._settings.connect_timeout_s)
            except KafkaException as error:
                doing = f"none for {down_s:.0f} s while reading"
                raise unreachable(self._settings.bootstrap, doing) from error
            self._down_since_s = None


def _block(source: Source, messages: Sequence[Message]) -> MessageBlock:
    return MessageBlock(
        source,
        np.fromiter(map(Message.offset, messages), np.int64, len(messages)),
        np.array([append_ms for _, append_ms in map(Message.timestamp, messages)], np.int64),
        [value or b"" for value in map(Message.value, messages)],
        list(map(Message.key, messages)),
    )


def _partition(source: Source) -> TopicPartition:
    return TopicPartition(source.topic, source.partition)
