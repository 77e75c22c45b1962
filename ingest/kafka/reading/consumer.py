"""`Reader` on Kafka: a consumer whose partitions begin only at the offsets passed to `start`.

A newly assigned partition is paused, and nothing of it is delivered before `start` names an offset.
Neither the joiner nor a learner relies on Kafka's committed offset alone. `consumer_group` explains
how the group is joined, and why a member that Kafka calls fenced may still be the only one.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import Fenced, KafkaUnreachable, MissingTopic
from headrace.ingest.kafka.advertised_brokers import listed_topics
from headrace.ingest.kafka.client_log import client_log
from headrace.ingest.kafka.error_translation import translate, translated, unreachable
from headrace.ingest.kafka.protocols import (
    AtEnd,
    Committed,
    MessageBlock,
    PartitionAssigned,
    PartitionRevoked,
    Reader,
    ReaderEvent,
    ReadPosition,
    Record,
    Source,
)
from headrace.ingest.kafka.reading.consumer_group import (
    HARMLESS,
    SPARE_AFTER_S,
    block_of,
    consumer_config,
    fetch,
    member_of_instance,
    membership,
    named,
    partition_of,
    resumes_at,
    seek,
)
from headrace.ingest.kafka.reading.log_truncation import topic_ids, truncated
from headrace.ingest.kafka.reading.offset_store import committed_by
from headrace.ingest.kafka.retry import not_before, retry_for
from headrace.ingest.kafka.settings import KafkaSettings

_Place = tuple[str | None, int | None]

log = logging.getLogger(__name__)

_LARGEST_POLL = 5_000
"""Most records of one poll: some 10 ms of work, so that a stop or a rebalance is prompt."""

_STALE_END_S = 10.0
"""Longer than the session of a broker (9 s by default), after which it leads no partition."""


class KafkaReader:
    """Records of the partitions assigned to this process.

    Only one thread may use it: others would wait for the one that polls (`log_bounds`). With
    `group=None` the reader has every partition of the topics and joins no group. Raises
    KafkaUnreachable if no broker answers, MissingTopic, NotAllowed.
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
        """The member id under which Kafka assigned the partitions."""
        self._lapsed = False  # called fenced, but no other process took over
        self._sources: dict[_Place, Source] = {}  # assigned, by topic and partition in Kafka
        self._started: dict[Source, int] = {}
        """The sources that deliver, and the first offset not yet delivered."""
        self._paused: set[Source] = set()
        self._changes: list[PartitionAssigned | PartitionRevoked] = []
        self._reported_ends: dict[Source, int] = {}
        self._down_since_s: float | None = None
        self._read_committed = read_committed
        self._joined_s = time.monotonic()
        self._consumer = self._connected()
        self._admin = AdminClient(settings.connection())
        try:
            partitions = self._check_topics(topics)
            if group is None:
                self._assign(partitions)
            else:
                self._join()
        except BaseException:
            self.close()
            raise

    # ---------------------------------------------------------------- the protocol

    def poll(self, timeout_s: float) -> list[ReaderEvent]:
        """Return records and changes; wait for the first of them up to `timeout_s`.

        Raises KafkaUnreachable if brokers were down for longer than `lost_timeout_s`, OffsetGone,
        Fenced, NotAllowed, MissingTopic.
        """
        events: list[ReaderEvent] = []
        for event in self.poll_blocks(timeout_s):
            if isinstance(event, MessageBlock):
                events += event.records()
            else:
                events.append(event)
        return events

    def poll_blocks(
        self, timeout_s: float
    ) -> list[MessageBlock | AtEnd | PartitionAssigned | PartitionRevoked]:
        """Return the result of `poll` in blocks."""
        with translated("reading", self._settings.bootstrap):
            # consume() would wait for a full batch; poll() waits only for the first message
            first = self._consumer.poll(0.0 if self._changes else timeout_s)
            messages = [] if first is None else [first]
            messages += self._consumer.consume(_LARGEST_POLL, 0.0)
        events = self._events(messages)
        if self._lapsed:
            self._join_again()
            events = []
        changes, self._changes = self._changes, []
        if self._down_since_s is not None:
            self._check_down(bool(events))
        return [*changes, *events]

    def start(self, offsets: Mapping[Source, int]) -> None:
        """Read these sources from these offsets, dropping records fetched before."""
        for source, offset in offsets.items():
            if source not in self._sources.values():
                continue  # revoked in the meantime: `PartitionRevoked` is on its way
            self._started[source] = offset
            self._seek(source)
            self._reported_ends.pop(source, None)
        begun = {s: self._started[s] for s in offsets if s in self._started.keys() - self._paused}
        fetch(self._consumer, begun, self._settings)

    def pause(self, sources: Iterable[Source]) -> None:
        """Deliver nothing from these sources until `resume`."""
        ours = [source for source in sources if source in self._started]
        self._paused.update(ours)
        self._consumer.pause([partition_of(self._settings, source) for source in ours])

    def resume(self, sources: Iterable[Source]) -> None:
        """Undo `pause`."""
        ours = [source for source in sources if source in self._started]
        self._paused.difference_update(ours)
        fetch(self._consumer, {source: self._started[source] for source in ours}, self._settings)

    def bounds(self, source: Source, reached: int = 0) -> tuple[int, int]:
        """Return the first offset that Kafka still has, and the first that it does not have yet.

        For a reader of committed records a source ends at its last stable offset. That is where an
        open transaction begins, or one committed a moment ago whose marker is not yet written.
        """
        asking = retry_for(self._settings.connect_timeout_s)
        return not_before(partial(asking, self._bounds, source), reached, retry_for(_STALE_END_S))

    def truncated(self, positions: Mapping[Source, ReadPosition]) -> list[Source]:
        """Return the sources whose logs lost records before these positions."""
        return retry_for(self._settings.lost_timeout_s)(truncated, self._settings, positions)

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic, which changes when the topic is recreated."""
        # called before every push: wait for a broker that restarts
        return retry_for(self._settings.lost_timeout_s)(self._topic_id, topic)

    def commit(self, offsets: Mapping[Source, int]) -> None:
        """Commit offsets without waiting, for lag dashboards only."""
        positions = [
            partition_of(self._settings, source, offset)
            for source, offset in offsets.items()
            if source in self._started
        ]
        if positions:
            self._consumer.commit(offsets=positions, asynchronous=True)

    def close(self) -> None:
        """Leave the group, and disconnect."""
        self._consumer.close()
        vars(self).pop("_admin", None)  # disconnects it: the consumer's callbacks keep this reader

    @property
    def settled(self) -> bool:
        """Whether the assigned partitions are read; a spare has none and settles after a while."""
        sources = list(self._sources.values())
        if not sources:
            return time.monotonic() > self._joined_s + SPARE_AFTER_S
        return all(source in self._started for source in sources)

    def group_metadata(self) -> object:
        """Return the membership, so that a transaction of a removed member fails."""
        return self._consumer.consumer_group_metadata()

    def committed(self, sources: Iterable[Source]) -> dict[Source, Committed]:
        """Return the committed offsets, waiting for a transaction that writes them."""
        return committed_by(self._settings, self._group or "", sources)

    # ---------------------------------------------------------------- inside

    def _topic_id(self, topic: str) -> str:
        try:
            return topic_ids(self._settings, self._admin, [topic])[topic]
        except KafkaUnreachable:
            # after an outage the client may wait for a controller that it never finds again
            self._admin = AdminClient(self._settings.connection())
            raise

    def _bounds(self, source: Source) -> tuple[int, int]:
        timeout_s, address = self._settings.connect_timeout_s, self._settings.bootstrap
        doing, partition = f"asking for the ends of {source}", partition_of(self._settings, source)
        try:
            with translated(doing, address):
                low, high = self._consumer.get_watermark_offsets(partition, timeout=timeout_s)
        except MissingTopic as error:
            # after an outage the client may not have the partitions of a topic that exists
            if any(p.partition == source.partition for p in self._check_topics([source.topic])):
                raise unreachable(address, str(error)) from error
            raise
        return low, high

    def _seek(self, source: Source) -> None:
        seek(self._consumer, source, self._started[source], self._settings)

    def _connected(self) -> Consumer:
        config = {
            **consumer_config(self._settings, read_committed=self._read_committed),
            "error_cb": self._on_error,
            **membership(self._settings, self._group, self._instance),
        }
        with translated("creating a consumer", self._settings.bootstrap):
            return Consumer(config)

    def _join(self) -> None:
        self._consumer.subscribe(
            [self._settings.names.physical(topic) for topic in self._topics],
            on_assign=lambda _, partitions: self._assign(partitions),
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def _join_again(self) -> None:
        """Replace the consumer, which is of no further use, by one that joins anew."""
        lapsed, self._consumer = self._consumer, self._connected()
        lapsed.close()
        self._on_revoke(
            lapsed, [partition_of(self._settings, source) for source in self._sources.values()]
        )
        self._lapsed = False
        self._join()

    def _taken_over(self) -> bool:
        """Whether another process is a member of the group under this instance's name."""
        if self._group is None or self._instance is None:
            return True
        asking = retry_for(self._settings.lost_timeout_s)
        member = asking(member_of_instance, self._settings, self._group, self._instance)
        return member not in (None, self._member)

    def _check_topics(self, topics: Sequence[str]) -> list[TopicPartition]:
        metadata = listed_topics(self._consumer, self._settings)
        physical = [self._settings.names.physical(topic) for topic in topics]
        missing = [topic for topic in physical if topic not in metadata.topics]
        if missing:
            raise MissingTopic(
                f"expected topics {', '.join(physical)} at {self._settings.bootstrap}, "
                f"got no {', '.join(missing)}"
            )
        return [
            TopicPartition(topic, partition)
            for topic in physical
            for partition in sorted(metadata.topics[topic].partitions)
        ]

    def _assign(self, partitions: list[TopicPartition]) -> None:
        # any offset will do: nothing is fetched before `start` seeks and resumes
        placed = [TopicPartition(p.topic, p.partition, OFFSET_BEGINNING) for p in partitions]
        if self._instance is not None:
            self._member = self._consumer.memberid()
            self._consumer.assign(placed)
        else:
            self._consumer.incremental_assign(placed)
        self._consumer.pause(placed)
        for partition in partitions:
            source = self._settings.names.source(partition)
            self._sources[partition.topic, partition.partition] = source
            self._changes.append(PartitionAssigned(source))
        log.info("assigned: %s", named(partitions))

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("revoked: %s", named(partitions))
        for partition in partitions:
            source = self._sources.pop((partition.topic, partition.partition), None)
            if source is not None:
                self._started.pop(source, None)
                self._paused.discard(source)
                self._reported_ends.pop(source, None)
                self._changes.append(PartitionRevoked(source))

    def _events(self, messages: Sequence[Message]) -> list[MessageBlock | AtEnd]:
        """Return messages as blocks and ends, without sources not assigned or not started."""
        grouped: dict[_Place, list[Message]] = {}
        ends: dict[_Place, int] = {}
        # the hottest loop of every reader: these calls read attributes without leaving C
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
        events: list[MessageBlock | AtEnd] = []
        for place, group in grouped.items():
            source = self._sources.get(place)
            if source is not None and source in self._started:
                block = block_of(source, group)
                if not resumes_at(block, self._started[source]):
                    ends.pop(place, None)
                    self._seek(source)
                    continue
                events.append(block)
                end = self._started[source] = int(block.offsets[-1]) + 1
                # Kafka had no more when it answered; the client reports that one answer later
                bounds = self._consumer.get_watermark_offsets(
                    partition_of(self._settings, source), cached=True
                )
                if end == bounds[1]:
                    ends.setdefault(place, end)
        for place, offset in ends.items():
            source = self._sources[place]
            if self._reported_ends.get(source) != offset:
                self._reported_ends[source] = offset
                events.append(AtEnd(source, offset))
        return events

    def _is_end(self, error: KafkaError, source: Source | None) -> bool:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return source in self._started
        failure = translate(error, f"reading {source or 'the group'}", self._settings.bootstrap)
        if error.code() in HARMLESS or isinstance(failure, KafkaUnreachable):
            log.warning("%s", failure)
            return False
        if isinstance(failure, Fenced) and not self._taken_over():
            log.warning("Kafka dropped this member during an outage, joining again: %s", failure)
            self._lapsed = True
            return False
        raise failure

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self._down_since_s = self._down_since_s or time.monotonic()
        client_log.warning("Kafka client at %s: %s", self._settings.bootstrap, error.str())

    def _check_down(self, heard: bool) -> None:
        """Check whether a broker came back after an outage, or it lasted too long."""
        assert self._down_since_s is not None
        down_s = time.monotonic() - self._down_since_s
        if heard:
            self._down_since_s = None
        elif down_s > self._settings.lost_timeout_s:
            try:
                self._consumer.list_topics(timeout=self._settings.connect_timeout_s)
            except KafkaException as error:
                doing = f"no answer for {down_s:.0f} s while reading"
                raise unreachable(self._settings.bootstrap, doing) from error
            self._down_since_s = None


def poll_from_first(reader: Reader, timeout_s: float) -> list[Record | AtEnd]:
    """Poll a reader without a group, and read each partition from the first record in Kafka.

    Raises the errors of `Reader.poll`.
    """
    events: list[Record | AtEnd] = []
    for event in reader.poll(timeout_s):
        if isinstance(event, PartitionAssigned):
            reader.start({event.source: reader.bounds(event.source)[0]})
        elif not isinstance(event, PartitionRevoked):
            events.append(event)
    return events
