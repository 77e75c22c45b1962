"""What a joiner has done, as Kafka knows it: the metadata of its committed offsets.

The joiner stores with the offset of impressions, partition by partition, all it needs to go on
(`SavedCheckpoint`). Whoever wants to know how far it is reads the same, from any process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as At  # type: ignore[attr-defined]

from headrace.ingest.errors import BadCheckpoint, KafkaUnreachable
from headrace.ingest.joiner.core import JoinerCheckpoint, JoinerCounters
from headrace.ingest.kafka import (
    EventTopics,
    check_co_partitioned,
    joiner_group,
    retry_for,
    translated,
)

if TYPE_CHECKING:
    from headrace.ingest.features import FieldSet
    from headrace.ingest.kafka import KafkaSettings


class JoinerModel(Protocol):
    """What is asked of a model here: its name and its fields."""

    @property
    def name(self) -> str:
        """The name in topics and groups."""

    @property
    def fields(self) -> FieldSet:
        """The fields its examples are made of."""


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """The metadata of an offset of impressions."""

    fingerprint: str
    """Of the fields and label policy the checkpoint was reached with."""
    topic_ids: tuple[str, str]
    """Of impressions and clicks: offsets mean nothing in topics that were made again."""
    checkpoint: JoinerCheckpoint

    def to_json(self) -> str:
        """Return it as JSON, some 500 characters."""
        return msgspec.json.encode(self).decode()


def load_checkpoint(text: str, fingerprint: str, where: str) -> SavedCheckpoint:
    """Return what a joiner of the same fields saved. Raises BadCheckpoint."""
    try:
        saved = msgspec.json.decode(text, type=SavedCheckpoint)
    except msgspec.MsgspecError as error:
        raise BadCheckpoint(
            f"{where}: expected the checkpoint of a joiner in the metadata of its committed "
            f"offset, found {text[:80]!r}: {error}"
        ) from error
    if saved.fingerprint != fingerprint:
        raise BadCheckpoint(
            f"{where}: expected fields with fingerprint {fingerprint} (of the model spec in use), "
            f"found {saved.fingerprint} (of the spec joined with so far): a changed model needs "
            "another name"
        )
    return saved


@dataclass(frozen=True, slots=True)
class JoinerState:
    """What was joined so far, over all partitions and restarts."""

    impressions: int
    """Each once, however often it was sent."""
    clicks: int
    late_clicks: int
    duplicates: int
    """Impressions and clicks again."""
    examples: int
    dead_letters: int
    lag: int
    """Events of any kind that were not yet taken, those of open transactions included."""
    dropped_negatives: int = 0
    """Examples that down-sampling left out."""


class StateReader:
    """Reads the state of one model's joiner, again and again over one connection."""

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
            # after an outage the client may go on waiting for a coordinator that is no more
            self._connect()
            raise

    def _connect(self) -> None:
        """Make the clients: one that asks for ends, and a consumer that never joins its group.

        An AdminClient would answer for the group's offsets too. But if the group's coordinator is
        just moving, librdkafka 2.16 then brings down the process (librdkafka's pull request 5318).
        """
        group = joiner_group(self._model.name)
        own = {"group.id": group, "enable.auto.commit": False}
        # else it would wait for the end of transactions on the offsets: the last ones will do
        own["isolation.level"] = "read_uncommitted"
        self._admin = AdminClient(self._kafka.connection())
        self._consumer = Consumer({**self._kafka.connection(), **own})

    def _ask(self) -> JoinerState:
        committed = self._committed()
        counters = JoinerCounters()
        for (topic, partition), found in committed.items():
            if topic == self._topics.impressions:
                where = f"{topic}/{partition}"
                saved = load_checkpoint(found.metadata or "", self._model.fields.fingerprint, where)
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
        )

    def _sources(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition)
            for topic in (self._topics.impressions, self._topics.clicks)
            for partition in range(self._partitions)
        ]

    def _committed(self) -> dict[tuple[str, int], TopicPartition]:
        group = joiner_group(self._model.name)
        with translated(f"reading the offsets of group {group}", self._kafka.bootstrap):
            answer = self._consumer.committed(
                self._sources(), timeout=self._kafka.connect_timeout_s
            )
        return {(found.topic, found.partition): found for found in answer if found.offset >= 0}

    def _offsets(self, at: At) -> dict[tuple[str, int], int]:
        with translated("reading the ends of the events", self._kafka.bootstrap):
            asked = self._admin.list_offsets(
                dict.fromkeys(self._sources(), at),
                # the last stable offset would hide what was committed a moment ago
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._kafka.connect_timeout_s,
            )
            return {
                (tp.topic, tp.partition): answer.result().offset for tp, answer in asked.items()
            }


def read_state(
    kafka: KafkaSettings, model: JoinerModel, topics: EventTopics | None = None
) -> JoinerState:
    """Return what the model's joiner has done and how much it has to do.

    Who asks often keeps a `StateReader`. Raises KafkaUnreachable, MissingTopic, BadCheckpoint.
    """
    return StateReader(kafka, model, topics).read()
