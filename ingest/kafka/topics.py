"""Names and settings of every Kafka topic, and the check that those there are as they must be.

    impressions, clicks    what producers write; the same partition count, so that a click meets
                           its impression
    dead-letters           what could not be used, with the reason
    examples.<model>       the joiner's output, partition by partition as its input
    scores.<model>         what learners would have answered, before learning
    status                 what every process tells of itself, the last of each

Made once, then only verified: a topic's partitions are fixed for the life of a model, because the
parameter server's marks name them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.admin import ConfigResource as Resource  # type: ignore[attr-defined]

from headrace.ingest.errors import KafkaUnreachable, MissingTopic, TopicMismatch
from headrace.ingest.kafka.error_translation import translate, translated
from headrace.ingest.kafka.retry import retry_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.ingest.kafka.settings import KafkaSettings

LARGEST_MESSAGE_BYTES = 16 << 20
"""Of a batch of examples or scores: some thousand examples of a hundred ids, before compression."""

STATUS_TOPIC = "status"

_DAY_MS = 24 * 3600 * 1000
_INPUT_DAYS = 7
_EXAMPLES_DAYS = 28
"""Longer than the input: any past model can be rebuilt from the examples."""


AS_THE_BROKER_SAYS = -1
"""Its default.replication.factor."""


@dataclass(frozen=True, slots=True)
class EventTopics:
    """The topics that all models share, and the names that producers write to."""

    impressions: str = "impressions"
    clicks: str = "clicks"
    dead_letters: str = "dead-letters"


def examples_topic(model: str) -> str:
    """Return the topic of a model's examples."""
    return f"examples.{model}"


def scores_topic(model: str) -> str:
    """Return the topic of the scores that a model's learners would have answered."""
    return f"scores.{model}"


def joiner_group(model: str) -> str:
    """Return the consumer group whose committed offsets say what a model's joiner has done."""
    return f"headrace.{model}.joiner"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as it is made, and as it must be found."""

    name: str
    partitions: int
    required: Mapping[str, str] = field(default_factory=dict)
    """Kafka's topic settings without which headrace is wrong: verified where the topic exists."""
    preferred: Mapping[str, str] = field(default_factory=dict)
    """Settings that an operator may choose otherwise: used only to make it."""
    replicas: int = AS_THE_BROKER_SAYS
    """Copies of each partition; verified if it is a number."""


def topics_for(
    model: str,
    partitions: int = 4,
    events: EventTopics | None = None,
    replicas: int = AS_THE_BROKER_SAYS,
) -> tuple[TopicSpec, ...]:
    """Return every topic of a model; each is read and written partition by partition alike."""
    names = events or EventTopics()
    # a compacted log would forget all but the last event of an impression
    log = {"cleanup.policy": "delete"}
    # an old event must not fall to retention at once, and freshness needs the append time
    stamped = {**log, "message.timestamp.type": "LogAppendTime"}
    batches = {**log, "max.message.bytes": str(LARGEST_MESSAGE_BYTES)}
    # as it came, which is lz4 from all of ours: a broker that packs anew spends its time on it
    kept = {"compression.type": "producer"}
    if replicas > 1:
        # what is acknowledged survives the loss of a broker, and one may be down for writing
        kept["min.insync.replicas"] = str(max(1, replicas - 1))
    week = {**kept, "retention.ms": str(_INPUT_DAYS * _DAY_MS)}
    last = {**kept, "cleanup.policy": "compact,delete", "retention.ms": str(_DAY_MS)}
    month = {**kept, "retention.ms": str(_EXAMPLES_DAYS * _DAY_MS)}
    return (
        TopicSpec(names.impressions, partitions, stamped, week, replicas),
        TopicSpec(names.clicks, partitions, stamped, week, replicas),
        TopicSpec(names.dead_letters, 1, batches, week, replicas),
        TopicSpec(examples_topic(model), partitions, batches, month, replicas),
        TopicSpec(scores_topic(model), partitions, batches, month, replicas),
        TopicSpec(STATUS_TOPIC, 1, {}, last, replicas),
    )


def ensure_topics(settings: KafkaSettings, specs: Sequence[TopicSpec]) -> list[str]:
    """Make the topics that are missing and verify the others.

    Returns what an operator chose otherwise than headrace would have, a line each. Raises
    TopicMismatch naming every difference that matters, KafkaUnreachable, NotAllowed.
    """
    admin = _connected(settings)
    there = partition_counts(settings, [spec.name for spec in specs], admin)
    _create(settings, admin, [spec for spec in specs if spec.name not in there])
    existing = [spec for spec in specs if spec.name in there]
    found = _read_configs(settings, admin, [spec.name for spec in existing])
    differences = [
        difference
        for spec in existing
        for difference in _differences(spec, there[spec.name], found[spec.name])
    ]
    copied = replica_counts(settings, [s.name for s in existing if s.replicas > 0], admin)
    differences += [
        f"topic {spec.name}: expected {spec.replicas} replicas, found {copied[spec.name]}"
        for spec in existing
        if spec.name in copied and copied[spec.name] != spec.replicas
    ]
    if differences:
        raise TopicMismatch("; ".join(differences))
    return [
        f"topic {spec.name}: {key}={found[spec.name][key]}, where headrace would choose {value}"
        for spec in existing
        for key, value in spec.preferred.items()
        if found[spec.name].get(key) not in (None, value)
    ]


def partition_counts(
    settings: KafkaSettings, topics: Iterable[str], admin: AdminClient | None = None
) -> dict[str, int]:
    """Return how many partitions each of the topics has that exist."""
    admin = admin or _connected(settings)
    with translated("listing topics", settings.bootstrap):
        metadata = admin.list_topics(timeout=settings.connect_timeout_s)
    return {
        topic: len(metadata.topics[topic].partitions)
        for topic in topics
        if topic in metadata.topics and metadata.topics[topic].error is None
    }


def replica_counts(
    settings: KafkaSettings, topics: Sequence[str], admin: AdminClient
) -> dict[str, int]:
    """Return how many copies there are to be of each partition: of the partition with fewest."""
    if not topics:
        return {}
    with translated("listing topics", settings.bootstrap):
        metadata = admin.list_topics(timeout=settings.connect_timeout_s)
    return {
        topic: min(len(each.replicas) for each in metadata.topics[topic].partitions.values())
        for topic in topics
    }


def check_co_partitioned(settings: KafkaSettings, topics: Sequence[str]) -> int:
    """Return the partition count that all the topics share.

    Raises MissingTopic, or TopicMismatch naming the counts, and KafkaUnreachable.
    """
    counts = partition_counts(settings, topics)
    missing = [topic for topic in topics if topic not in counts]
    if missing:
        raise MissingTopic(f"expected topics {', '.join(topics)}, found no {', '.join(missing)}")
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{topic} {count}" for topic, count in counts.items())
        raise TopicMismatch(f"expected the same number of partitions, found {found}")
    return counts[topics[0]]


def _connected(settings: KafkaSettings) -> AdminClient:
    """Return a client that a broker has answered; where none does, the error has its reason.

    "No broker answers" can mean a wrong password or a listener without TLS: the client says so to
    whoever asks it, and to nobody else.
    """
    said: list[KafkaError] = []
    # what it would log is in the error, once and not for every attempt
    quiet: dict[str, Any] = {"error_cb": said.append, "log_level": 0}
    with translated("making a client", settings.bootstrap):
        admin = AdminClient({**settings.connection(), **quiet})
    try:
        admin.list_topics(timeout=settings.connect_timeout_s)
    except KafkaException as error:
        admin.poll(0.0)
        raise translate(said[0] if said else error, "connecting", settings.bootstrap) from error
    return admin


def _create(settings: KafkaSettings, admin: AdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    new = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replicas,
            config={**spec.preferred, **spec.required},
        )
        for spec in specs
    ]
    timeout_s = settings.connect_timeout_s
    made = admin.create_topics(new, operation_timeout=timeout_s, request_timeout=timeout_s)
    for name, future in made.items():
        try:
            future.result()
        except KafkaException as error:
            # two processes that start together both find it missing: the second is content
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translate(error, f"making topic {name}", settings.bootstrap) from error
    # the topics are made: leaders come, though a broker that has just started takes its time
    retry_for(4 * timeout_s)(_ask_leaders, settings, specs)


def _ask_leaders(settings: KafkaSettings, specs: Sequence[TopicSpec]) -> None:
    """Return if every partition has a leader that answers: Kafka says "made" before that.

    With a client of its own, since one that asked too early remembers that there was no leader.
    """
    admin = AdminClient(settings.connection())
    partitions = [
        TopicPartition(spec.name, partition)
        for spec in specs
        for partition in range(spec.partitions)
    ]
    at_end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    with translated("waiting for new topics", settings.bootstrap):
        asked = admin.list_offsets(
            dict.fromkeys(partitions, at_end), request_timeout=settings.connect_timeout_s
        )
        for answer in asked.values():
            try:
                answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError._NOENT:  # noqa: SLF001
                    raise
                # "no leaders found": what the client says of a topic deleted and made again
                raise KafkaUnreachable(f"no leader yet: {error.args[0].str()}") from error


def _read_configs(
    settings: KafkaSettings, admin: AdminClient, topics: Sequence[str]
) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    asked = [Resource(ResourceType.TOPIC, topic) for topic in topics]
    answers = admin.describe_configs(asked, request_timeout=settings.connect_timeout_s)
    found = {}
    for resource, future in answers.items():
        with translated(f"reading the settings of topic {resource.name}", settings.bootstrap):
            entries = future.result()
        found[resource.name] = {entry.name: entry.value for entry in entries.values()}
    return found


def _differences(spec: TopicSpec, partitions: int, configs: Mapping[str, str]) -> list[str]:
    differences = []
    if partitions != spec.partitions:
        differences.append(
            f"topic {spec.name}: expected {spec.partitions} partitions, found {partitions}"
        )
    for key, expected in spec.required.items():
        found = configs.get(key)
        enough = found == expected or (
            key == "max.message.bytes" and found is not None and int(found) >= int(expected)
        )
        if not enough:
            differences.append(f"topic {spec.name}: expected {key}={expected}, found {found}")
    return differences
