"""Names and settings of every Kafka topic, and the check that those there are as they must be.

    impressions, clicks    what producers write; the same partition count, so that a click meets
                           its impression
    dead-letters           what could not be used, with the reason
    examples.<model>       the joiner's output, partition by partition as its input
    scores.<model>         what learners would have answered, before learning

Made once, then only verified: a topic's partitions are fixed for the life of a model, because the
parameter server's marks name them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.admin import ConfigResource as Resource  # type: ignore[attr-defined]

from ingest.errors import KafkaUnreachable, MissingTopic, TopicMismatch
from ingest.foreign_errors import translate, translated
from ingest.patience import ask_again

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ingest.settings import KafkaSettings

LARGEST_MESSAGE_BYTES = 16 << 20
"""Of a batch of examples or scores: some thousand examples of a hundred ids, before compression."""

_DAY_MS = 24 * 3600 * 1000
_INPUT_DAYS = 7
_EXAMPLES_DAYS = 28
"""Longer than the input: any past model can be rebuilt from the examples."""


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
    replicas: int = -1
    """-1: as the broker's default.replication.factor says."""


def topics_for(
    model: str, partitions: int = 4, events: EventTopics | None = None
) -> tuple[TopicSpec, ...]:
    """Return every topic of a model; each is read and written partition by partition alike."""
    names = events or EventTopics()
    # a compacted log would forget all but the last event of an impression
    log = {"cleanup.policy": "delete"}
    # an old event must not fall to retention at once, and freshness needs the append time
    stamped = {**log, "message.timestamp.type": "LogAppendTime"}
    batches = {**log, "max.message.bytes": str(LARGEST_MESSAGE_BYTES)}
    week = {"retention.ms": str(_INPUT_DAYS * _DAY_MS)}
    month = {"retention.ms": str(_EXAMPLES_DAYS * _DAY_MS)}
    return (
        TopicSpec(names.impressions, partitions, stamped, week),
        TopicSpec(names.clicks, partitions, stamped, week),
        TopicSpec(names.dead_letters, 1, batches, week),
        TopicSpec(examples_topic(model), partitions, batches, month),
        TopicSpec(scores_topic(model), partitions, batches, month),
    )


def ensure_topics(settings: KafkaSettings, specs: Sequence[TopicSpec]) -> None:
    """Make the topics that are missing and verify the others.

    Raises TopicMismatch naming every difference, KafkaUnreachable, NotAllowed.
    """
    admin = AdminClient(settings.connection())
    there = partition_counts(settings, [spec.name for spec in specs], admin)
    _create(settings, admin, [spec for spec in specs if spec.name not in there])
    existing = [spec for spec in specs if spec.name in there]
    found = _read_configs(settings, admin, [spec.name for spec in existing])
    differences = [
        difference
        for spec in existing
        for difference in _differences(spec, there[spec.name], found[spec.name])
    ]
    if differences:
        raise TopicMismatch("; ".join(differences))


def partition_counts(
    settings: KafkaSettings, topics: Iterable[str], admin: AdminClient | None = None
) -> dict[str, int]:
    """Return how many partitions each of the topics has that exist."""
    admin = admin or AdminClient(settings.connection())
    with translated("listing topics", settings.bootstrap):
        metadata = admin.list_topics(timeout=settings.connect_timeout_s)
    return {
        topic: len(metadata.topics[topic].partitions)
        for topic in topics
        if topic in metadata.topics and metadata.topics[topic].error is None
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
    ask_again(timeout_s)(_ask_leaders, settings, admin, specs)


def _ask_leaders(settings: KafkaSettings, admin: AdminClient, specs: Sequence[TopicSpec]) -> None:
    """Return once every partition has a leader that answers: Kafka says "made" before that."""
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
