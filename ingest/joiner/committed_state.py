"""The committed state of a joiner: the metadata of its committed offsets in Kafka.

With the offset of each partition of impressions, the joiner stores all it needs to continue
(`SavedCheckpoint`). Any process reads the same metadata to report the progress of a joiner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as At  # type: ignore[attr-defined]

from headrace.ingest.errors import BadCheckpoint, KafkaUnreachable
from headrace.ingest.joiner.core.checkpoint import (
    CHECKPOINT_FORMAT,
    JoinerCheckpoint,
    JoinerCounters,
)
from headrace.ingest.kafka.error_translation import answer_of, translated
from headrace.ingest.kafka.retry import retry_for
from headrace.ingest.kafka.topics import EventTopics, check_co_partitioned, joiner_group
from headrace.runtime.undecodable import UNDECODABLE

if TYPE_CHECKING:
    from headrace.ingest.features.fields import FieldSet
    from headrace.ingest.kafka.protocols import Source
    from headrace.ingest.kafka.settings import KafkaSettings


class JoinerModel(Protocol):
    """The model of a joiner, as far as this file needs it."""

    @property
    def name(self) -> str:
        """The name in topics and consumer groups."""

    @property
    def fields(self) -> FieldSet:
        """The fields of its examples."""


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """The metadata of a committed offset of impressions."""

    fingerprint: str
    """The fingerprint of the fields and label policy that led to the checkpoint."""
    topic_ids: tuple[str, str]
    """Ids of the topics of impressions and clicks; in a recreated topic offsets are meaningless."""
    checkpoint: JoinerCheckpoint
    leader_epochs: tuple[int, int] = (-1, -1)
    """Leader epochs of impressions and clicks up to their positions; -1: unknown."""
    batch: str = ""
    """Name of the last transaction with examples of the partition; empty: unknown."""

    def to_json(self) -> str:
        """Return it as JSON, some 500 characters."""
        return msgspec.json.encode(self).decode()


def load_checkpoint(text: str, fingerprint: str, where: str) -> SavedCheckpoint:
    """Return the checkpoint that a joiner of the same fields saved. Raises BadCheckpoint."""
    try:
        saved = msgspec.json.decode(text, type=SavedCheckpoint)
    except UNDECODABLE as error:
        raise BadCheckpoint(
            f"{where}: expected the checkpoint of a joiner in the metadata of its committed "
            f"offset, got {text[:80]!r}: {error}"
        ) from error
    if saved.checkpoint.format != CHECKPOINT_FORMAT:
        raise BadCheckpoint(
            f"{where}: expected format {CHECKPOINT_FORMAT} of a joiner's checkpoint, got "
            f"{saved.checkpoint.format}: use the version of headrace that wrote it, or a newer one"
        )
    if saved.fingerprint != fingerprint:
        raise BadCheckpoint(
            f"{where}: expected fields with fingerprint {fingerprint} (of the model spec in use), "
            f"got {saved.fingerprint} (of the spec used so far): give a changed model another "
            "name"
        )
    return saved


@dataclass(frozen=True, slots=True)
class JoinerState:
    """Totals over all partitions and restarts."""

    impressions: int
    """Each counted once, even if it was sent several times."""
    clicks: int
    """Accepted: learned, late, unmatched and repeated ones, and those that still wait."""
    late_clicks: int
    """More than the label window from their impression; some are unmatched after a restart."""
    duplicates: int
    """Repeated impressions and clicks."""
    examples: int
    dead_letters: int
    lag: int
    """Events not yet joined, including those of open transactions."""
    dropped_negatives: int = 0
    """Examples dropped by down-sampling."""
    unmatched_clicks: int = 0
    """Clicks without an impression of their id."""
    duplicate_clicks: int = 0
    """Further clicks of an impression. `duplicates` includes them."""

    @property
    def learned_clicks(self) -> int:
        """Clicks that became the label of an example, if none still waits."""
        lost = self.late_clicks + self.unmatched_clicks + self.duplicate_clicks
        return self.clicks - lost


class StateReader:
    """Reads the state of one model's joiner, repeatedly over one connection."""

    def __init__(
        self, kafka: KafkaSettings, model: JoinerModel, topics: EventTopics | None = None
    ) -> None:
        self._kafka, self._model = kafka, model
        self._topics = topics or EventTopics()
        self._connect()
        names = [self._topics.impressions, self._topics.clicks]
        self._partitions = check_co_partitioned(kafka, names)

    def read(self) -> JoinerState:
        """Return the state as of the last committed transaction.

        Raises KafkaUnreachable, NotAllowed, BadCheckpoint.
        """
        return retry_for(self._kafka.connect_timeout_s)(self._read)

    def _read(self) -> JoinerState:
        try:
            return self._ask()
        except KafkaUnreachable:
            # after an outage the client may keep waiting for a coordinator that has moved
            self._connect()
            raise

    def _connect(self) -> None:
        """Create two clients: an admin client for ends, and a consumer that never joins its group.

        An AdminClient could list the group's offsets too. But if the group's coordinator is moving
        at that time, librdkafka 2.16 aborts the process (librdkafka's pull request 5318).
        """
        group = self._kafka.names.physical(joiner_group(self._model.name))
        own = {"group.id": group, "enable.auto.commit": False}
        # without this it waits for the end of open transactions; the last committed offsets do
        own["isolation.level"] = "read_uncommitted"
        self._admin = AdminClient(self._kafka.connection())
        self._consumer = Consumer({**self._kafka.connection(), **own})

    def _ask(self) -> JoinerState:
        committed = self._committed()
        counters = JoinerCounters()
        for (topic, partition), commit in committed.items():
            if topic == self._topics.impressions:
                where = f"{topic}/{partition}"
                text = commit.metadata or ""
                saved = load_checkpoint(text, self._model.fields.fingerprint, where)
                counters += saved.checkpoint.counters
        ends = self._offsets(At.latest())  # type: ignore[no-untyped-call]
        begins = self._offsets(At.earliest())  # type: ignore[no-untyped-call]
        lag = sum(
            end - (committed[source].offset if source in committed else begins[source])
            for source, end in ends.items()
        )
        return JoinerState(
            impressions=counters.impressions,
            clicks=counters.clicks,
            late_clicks=counters.late_clicks,
            duplicates=counters.duplicates,
            examples=counters.examples,
            dead_letters=counters.dead_letters,
            lag=lag,
            dropped_negatives=counters.dropped_negatives,
            unmatched_clicks=counters.unmatched_clicks,
            duplicate_clicks=counters.duplicate_clicks,
        )

    def _sources(self) -> list[TopicPartition]:
        return [
            TopicPartition(self._kafka.names.physical(topic), partition)
            for topic in (self._topics.impressions, self._topics.clicks)
            for partition in range(self._partitions)
        ]

    def _committed(self) -> dict[Source, TopicPartition]:
        group = self._kafka.names.physical(joiner_group(self._model.name))
        with translated(f"reading the offsets of group {group}", self._kafka.bootstrap):
            answer = self._consumer.committed(
                self._sources(), timeout=self._kafka.connect_timeout_s
            )
        return {self._kafka.names.source(tp): tp for tp in answer if tp.offset >= 0}

    def _offsets(self, at: At) -> dict[Source, int]:
        with translated("reading the ends of the events", self._kafka.bootstrap):
            futures = self._admin.list_offsets(
                dict.fromkeys(self._sources(), at),
                # the last stable offset would hide what was committed a moment ago
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._kafka.connect_timeout_s,
            )
            return {
                self._kafka.names.source(tp): answer_of(answer).offset
                for tp, answer in futures.items()
            }


def read_state(
    kafka: KafkaSettings, model: JoinerModel, topics: EventTopics | None = None
) -> JoinerState:
    """Return the progress and the lag of the model's joiner.

    To read repeatedly, keep a `StateReader`. Raises KafkaUnreachable, MissingTopic, BadCheckpoint.
    """
    return StateReader(kafka, model, topics).read()
