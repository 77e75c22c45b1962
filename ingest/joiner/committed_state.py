"""The committed state of a joiner: the metadata of its committed offsets in Kafka.

With the offset of each partition of impressions, the joiner stores all it needs to continue
(`SavedCheckpoint`). Any process reads the same metadata to report the progress of a joiner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from confluent_kafka.admin import AdminClient

from headrace.ingest.errors import BadCheckpoint, KafkaUnreachable
from headrace.ingest.joiner.core.checkpoint import (
    CHECKPOINT_FORMAT,
    JoinerCheckpoint,
    JoinerCounters,
)
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.log_bounds import EARLIEST, log_offsets
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets, committed_offsets
from headrace.ingest.kafka.retry import retry_for
from headrace.ingest.kafka.topics import EventTopics, check_co_partitioned, joiner_group
from headrace.runtime.undecodable import UNDECODABLE

if TYPE_CHECKING:
    from headrace.ingest.features.fields import FieldSet
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


class JoinerState(JoinerCounters, frozen=True):
    """Totals over all partitions and restarts."""

    lag: int = 0
    """Events not yet joined, including those of open transactions."""

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
        names = topics or EventTopics()
        self._impressions = names.impressions
        self._connect()
        inputs = [names.impressions, names.clicks]
        partitions = check_co_partitioned(kafka, inputs)
        self._sources = [Source(topic, each) for topic in inputs for each in range(partitions)]

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
        self._admin = AdminClient(self._kafka.connection())
        # the last committed offsets do: no need to wait for the end of open transactions
        self._offsets = KafkaOffsets(self._kafka, joiner_group(self._model.name), settled=False)

    def _ask(self) -> JoinerState:
        committed = committed_offsets(self._offsets.client, self._kafka, self._sources)
        counters = JoinerCounters()
        for source, commit in committed.items():
            if source.topic == self._impressions:
                where = f"{source.topic}/{source.partition}"
                saved = load_checkpoint(commit.metadata, self._model.fields.fingerprint, where)
                counters += saved.checkpoint.counters
        # the last stable offsets would hide what was committed a moment ago
        ends = log_offsets(self._kafka, self._admin, self._sources)
        begins = log_offsets(self._kafka, self._admin, self._sources, EARLIEST)
        lag = sum(
            end.offset - (committed[source] if source in committed else begins[source]).offset
            for source, end in ends.items()
        )
        return JoinerState(**msgspec.structs.asdict(counters), lag=lag)


def read_state(
    kafka: KafkaSettings, model: JoinerModel, topics: EventTopics | None = None
) -> JoinerState:
    """Return the progress and the lag of the model's joiner.

    To read repeatedly, keep a `StateReader`. Raises KafkaUnreachable, MissingTopic, BadCheckpoint.
    """
    return StateReader(kafka, model, topics).read()
