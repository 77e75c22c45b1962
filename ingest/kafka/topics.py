"""Names and settings of every Kafka topic, and the check that existing topics have them.

    impressions, clicks    written by producers; the same partition count, so that a click meets
                           its impression
    dead-letters           unusable events, with the reason
    examples.<model>       the joiner's output, in the partitions of its input
    scores.<model>         the learners' predictions, made before learning
    status                 the last status of every process
    replays                how far each named replay got; the first one creates it

Topics are created once, then only verified: by the command that creates them, and at the start of
each process that depends on a setting, because an operator may change it later. The number of
partitions may grow while no label window is open (`ingest.joiner.partition_growth`). It never
shrinks: Kafka cannot remove partitions, and the parameter server stores offsets by partition.

A process that finds no committed offset reads a topic from its first record. If the topic keeps
records for longer than Kafka keeps offsets, then a process that stood still in between would do old
work twice. headrace's processes continue from their output instead, or refuse to start.
`read_retention` tells how long Kafka keeps both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.admin import ConfigResource as Resource  # type: ignore[attr-defined]

from headrace.ingest.errors import KafkaUnreachable, MissingTopic, NotAllowed, TopicMismatch
from headrace.ingest.kafka.advertised_brokers import answering_admin, listed_topics
from headrace.ingest.kafka.error_translation import answer_of, translate, translated
from headrace.ingest.kafka.retry import retry_for
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings

log = logging.getLogger(__name__)

LARGEST_MESSAGE_BYTES = 16 << 20
"""For a batch of examples or scores: some thousand examples of a hundred ids, uncompressed."""

STATUS_TOPIC = "status"
REPLAYS_TOPIC = "replays"

_DAY_MS = 24 * 3600 * 1000
_INPUT_DAYS = 7
_EXAMPLES_DAYS = 28
"""Longer than the input, so that any past model can be rebuilt from the examples."""


_SET = AlterConfigOpType.SET

_NO_LEADER_YET = (
    KafkaError._NOENT,  # noqa: SLF001  ("no leaders found", of a topic deleted and recreated)
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # from a broker that other brokers are ahead of
)

FOREVER_MS = 1 << 62

AS_THE_BROKER_SAYS = -1
"""Replicas by the broker's default.replication.factor."""


@dataclass(frozen=True, slots=True)
class EventTopics:
    """The topics that all models share; producers write to the first two."""

    impressions: str = "impressions"
    clicks: str = "clicks"
    dead_letters: str = "dead-letters"


def examples_topic(model: str) -> str:
    """Return the topic of a model's examples."""
    return f"examples.{model}"


def scores_topic(model: str) -> str:
    """Return the topic of the predictions that a model's learners make before learning."""
    return f"scores.{model}"


def joiner_group(model: str) -> str:
    """Return the consumer group whose committed offsets are the progress of a model's joiner."""
    return f"headrace.{model}.joiner"


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic: how to create it, and what to verify."""

    name: str
    partitions: int
    required: Mapping[str, str] = field(default_factory=dict)
    """Topic settings that headrace depends on; verified if the topic exists."""
    preferred: Mapping[str, str] = field(default_factory=dict)
    """Settings that an operator may change; used only to create the topic."""
    replicas: int = AS_THE_BROKER_SAYS
    """Replicas of each partition; verified unless AS_THE_BROKER_SAYS."""


def topics_for(
    model: str,
    partitions: int = 4,
    events: EventTopics | None = None,
    replicas: int = AS_THE_BROKER_SAYS,
) -> tuple[TopicSpec, ...]:
    """Return every topic of a model; all but two have the same number of partitions."""
    names = events or EventTopics()
    # a compacted log would keep only the last event of an impression
    log = {"cleanup.policy": "delete"}
    # retention by create time would delete old events at once; freshness needs the append time
    stamped = {**log, "message.timestamp.type": "LogAppendTime"}
    batches = {**log, "max.message.bytes": str(LARGEST_MESSAGE_BYTES)}
    # as produced, which is lz4 from headrace: a broker that recompresses wastes its time
    kept = {"compression.type": "producer"}
    if replicas > 1:
        # an acknowledged message survives the loss of a broker, and writes work with one down
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


def replays_spec() -> TopicSpec:
    """Return the topic of the progress of named replays, which Kafka keeps without a limit."""
    return TopicSpec(REPLAYS_TOPIC, 1, {"cleanup.policy": "compact"})


_GROWS = (
    "With `headrace ingest topics --partitions {fewest}` a joiner starts, and under it `headrace "
    "topics grow` adds partitions. "
)
_CHANGES = "`headrace ingest topics --change-settings` changes settings of a model's topics"


def ensure_topics(settings: KafkaSettings, specs: Sequence[TopicSpec]) -> list[str]:
    """Verify the topics that exist, and create the others.

    Returns the settings where an operator chose differently, one line each. Raises TopicMismatch
    with every difference that matters, KafkaUnreachable, NotAllowed.
    """
    admin = answering_admin(settings)
    counts = partition_counts(settings, [spec.name for spec in specs], admin)
    existing = [spec for spec in specs if spec.name in counts]
    found = _read_configs(settings, admin, [spec.name for spec in existing])
    differences = [
        difference
        for spec in existing
        for difference in _differences(spec, counts[spec.name], found[spec.name])
    ]
    copied = replica_counts(settings, [s.name for s in existing if s.replicas > 0], admin)
    differences += [
        f"topic {spec.name}: expected {spec.replicas} replicas, got {copied[spec.name]}"
        for spec in existing
        if spec.name in copied and copied[spec.name] != spec.replicas
    ]
    if differences:
        behind = {counts[spec.name] for spec in existing if counts[spec.name] < spec.partitions}
        grows = _GROWS.format(fewest=min(behind)) if behind else ""
        raise TopicMismatch(f"{'; '.join(differences)}. {grows}{_CHANGES}, or use other topics")
    _create(settings, admin, [spec for spec in specs if spec.name not in counts])
    return [
        f"topic {spec.name}: {key}={found[spec.name][key]}, headrace's default is {value}"
        for spec in existing
        for key, value in spec.preferred.items()
        if found[spec.name].get(key) not in (None, value)
    ]


def change_settings(settings: KafkaSettings, specs: Sequence[TopicSpec]) -> list[str]:
    """Change those settings of existing topics on which headrace depends; return one line each.

    A topic that a client created by writing to it has the settings of the brokers. Raises
    KafkaUnreachable, NotAllowed.
    """
    admin = answering_admin(settings)
    counts = partition_counts(settings, [spec.name for spec in specs], admin)
    found, changed = _read_configs(settings, admin, list(counts)), []
    for spec in specs:
        other = _other_settings(spec, found[spec.name]) if spec.name in counts else {}
        if not other:
            continue
        entries = [ConfigEntry(*each, incremental_operation=_SET) for each in other.items()]
        name = settings.names.physical(spec.name)
        resources = [Resource(ResourceType.TOPIC, name, incremental_configs=entries)]
        answers = admin.incremental_alter_configs(
            resources, request_timeout=settings.connect_timeout_s
        )
        with translated(f"changing the settings of topic {name}", settings.bootstrap):
            for answer in answers.values():
                answer_of(answer)
        changed += [
            f"topic {spec.name}: {key}={value}, was {found[spec.name].get(key)}"
            for key, value in other.items()
        ]
    return changed


def check_topic_settings(settings: KafkaSettings, specs: Iterable[TopicSpec]) -> None:
    """Check that the topics which exist have the settings that headrace depends on.

    A user without the permission to read settings gets a warning. Raises TopicMismatch,
    KafkaUnreachable.
    """
    required = {spec.name: spec for spec in specs}
    admin = answering_admin(settings)
    counts = partition_counts(settings, required, admin)
    try:
        found = _read_configs(settings, admin, list(counts))
    except NotAllowed as error:
        log.warning("settings of topics %s are not checked: %s", ", ".join(counts), error)
        return
    differences = [
        difference
        for name, count in counts.items()
        for difference in _differences(
            replace(required[name], partitions=count), count, found[name]
        )
    ]
    if differences:
        raise TopicMismatch(f"{'; '.join(differences)}. {_CHANGES}, kafka-configs those of others")


def partition_counts(
    settings: KafkaSettings, topics: Iterable[str] | None = None, admin: AdminClient | None = None
) -> dict[str, int]:
    """Return the number of partitions of each topic that exists; None: of all topics."""
    admin = admin or answering_admin(settings)
    with translated("listing topics", settings.bootstrap):
        metadata = admin.list_topics(timeout=settings.connect_timeout_s)
    names = settings.names
    physical = {
        topic: names.physical(topic)
        for topic in (names.own(metadata.topics) if topics is None else topics)
    }
    return {
        topic: len(metadata.topics[name].partitions)
        for topic, name in physical.items()
        if name in metadata.topics and metadata.topics[name].error is None
    }


def replica_counts(
    settings: KafkaSettings, topics: Sequence[str], admin: AdminClient
) -> dict[str, int]:
    """Return the replicas of each topic: those of the partition with the fewest."""
    if not topics:
        return {}
    with translated("listing topics", settings.bootstrap):
        metadata = admin.list_topics(timeout=settings.connect_timeout_s)
    return {
        topic: min(
            len(p.replicas)
            for p in metadata.topics[settings.names.physical(topic)].partitions.values()
        )
        for topic in topics
    }


def check_co_partitioned(settings: KafkaSettings, topics: Sequence[str]) -> int:
    """Return the number of partitions that all the topics share.

    Raises MissingTopic, KafkaUnreachable, and TopicMismatch with the counts.
    """
    counts = partition_counts(settings, topics)
    missing = [topic for topic in topics if topic not in counts]
    if missing:
        raise MissingTopic(
            f"expected topics {', '.join(topics)}, got no {', '.join(missing)}: "
            "`headrace ingest topics --model FILE` creates them"
        )
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{topic} {count}" for topic, count in counts.items())
        raise TopicMismatch(
            f"expected the same number of partitions, got {found}: `headrace topics grow` "
            "completes an interrupted growth"
        )
    return counts[topics[0]]


def _create(settings: KafkaSettings, admin: AdminClient, specs: Sequence[TopicSpec]) -> None:
    if not specs:
        return
    new = [
        NewTopic(
            settings.names.physical_topic(spec.name),
            num_partitions=spec.partitions,
            replication_factor=spec.replicas,
            config={**spec.preferred, **spec.required},
        )
        for spec in specs
    ]
    timeout_s = settings.connect_timeout_s
    created = admin.create_topics(new, operation_timeout=timeout_s, request_timeout=timeout_s)
    for name, future in created.items():
        try:
            answer_of(future)
        except KafkaException as error:
            # two processes that start together both find it missing: the second one succeeds too
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translate(error, f"creating topic {name}", settings.bootstrap) from error
    _await_leaders(settings, {spec.name: spec.partitions for spec in specs})


def grow_topics(settings: KafkaSettings, topics: Iterable[str], partitions: int) -> list[str]:
    """Give topics more partitions; return those that had fewer. Missing topics stay missing.

    Raises KafkaUnreachable, NotAllowed.
    """
    admin = answering_admin(settings)
    counts = partition_counts(settings, topics, admin)
    fewer = [topic for topic, count in counts.items() if count < partitions]
    if fewer:
        timeout_s = settings.connect_timeout_s
        futures = admin.create_partitions(
            [NewPartitions(settings.names.physical(topic), partitions) for topic in fewer],
            operation_timeout=timeout_s,
            request_timeout=timeout_s,
        )
        for topic, future in futures.items():
            with translated(f"adding partitions to topic {topic}", settings.bootstrap):
                answer_of(future)
        _await_leaders(settings, dict.fromkeys(fewer, partitions))
    return fewer


def _await_leaders(settings: KafkaSettings, counts: Mapping[str, int]) -> None:
    """Wait until every partition has a leader that answers.

    Kafka reports that a topic is made before its leaders are elected, and a broker that has just
    started takes its time.
    """
    retry_for(4 * settings.connect_timeout_s)(_ask_leaders, settings, counts)


def _ask_leaders(settings: KafkaSettings, counts: Mapping[str, int]) -> None:
    # a client of its own, because one that asked too early remembers a missing leader
    admin = AdminClient(settings.connection())
    at_end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {
        TopicPartition(settings.names.physical(topic), partition): at_end
        for topic, count in counts.items()
        for partition in range(count)
    }
    with translated("waiting for new topics", settings.bootstrap):
        answers = admin.list_offsets(wanted, request_timeout=settings.connect_timeout_s)
        for answer in answers.values():
            try:
                answer_of(answer)
            except KafkaException as error:
                if error.args[0].code() not in _NO_LEADER_YET:
                    raise
                raise KafkaUnreachable(f"no leader yet: {error.args[0].str()}") from error


class KafkaRetention(NamedTuple):
    """Times in milliseconds; FOREVER_MS without a limit."""

    offsets_ms: int
    """From the time when the group became empty."""
    topics_ms: dict[str, int]


def read_retention(settings: KafkaSettings, topics: Sequence[str]) -> KafkaRetention:
    """Return the retention of committed offsets, and of records in each topic that exists.

    Raises KafkaUnreachable, NotAllowed.
    """
    admin = AdminClient(settings.connection())
    metadata = listed_topics(admin, settings, "listing topics")
    there = [each for each in topics if settings.names.physical(each) in metadata.topics]
    kept = _read_configs(settings, admin, there)
    broker = Resource(ResourceType.BROKER, str(min(metadata.brokers)))
    [offsets] = _described(settings, admin, [broker], "settings of brokers").values()
    return KafkaRetention(
        int(offsets["offsets.retention.minutes"]) * 60_000,
        {topic: _kept_ms(configs) for topic, configs in kept.items()},
    )


def _kept_ms(configs: Mapping[str, str]) -> int:
    kept_ms = int(configs["retention.ms"])
    return FOREVER_MS if kept_ms < 0 or "delete" not in configs["cleanup.policy"] else kept_ms


def _read_configs(
    settings: KafkaSettings, admin: AdminClient, topics: Sequence[str]
) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    resources = [Resource(ResourceType.TOPIC, settings.names.physical(each)) for each in topics]
    found = _described(settings, admin, resources, f"the settings of topics {', '.join(topics)}")
    return {settings.names.logical(name): configs for name, configs in found.items()}


def _described(
    settings: KafkaSettings, admin: AdminClient, resources: list[Resource], what: str
) -> dict[str, dict[str, str]]:
    answers = admin.describe_configs(resources, request_timeout=settings.connect_timeout_s)
    with translated(f"reading {what}", settings.bootstrap):
        return {
            resource.name: {entry.name: entry.value for entry in answer_of(each).values()}
            for resource, each in answers.items()
        }


def _differences(spec: TopicSpec, partitions: int, configs: Mapping[str, str]) -> list[str]:
    differences = []
    if partitions != spec.partitions:
        differences.append(
            f"topic {spec.name}: expected {counted(spec.partitions, 'partition')}, got {partitions}"
        )
    differences += [
        f"topic {spec.name}: expected {key}={expected}, got {configs.get(key)}"
        for key, expected in _other_settings(spec, configs).items()
    ]
    return differences


def _other_settings(spec: TopicSpec, configs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that headrace depends on and the topic does not have."""
    return {
        key: expected
        for key, expected in spec.required.items()
        if (found := configs.get(key)) != expected
        and not (key == "max.message.bytes" and found is not None and int(found) >= int(expected))
    }
