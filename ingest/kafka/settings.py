"""Connection settings of Kafka, shared by every process with a Kafka client.

Several environments may share one Kafka: each has a prefix. Processes use logical names
(`impressions`, `examples.MODEL`) everywhere inside, also in checkpoints and in positions kept in
outputs. `TopicNames` maps them to the physical names that Kafka has, and only code that calls a
Kafka client uses it. So an environment's records can be copied to another prefix unchanged.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.ingest.errors import KafkaRefused
from headrace.ingest.kafka.client_log import client_log
from headrace.ingest.kafka.protocols import Source


class _Place(Protocol):
    """A partition as the client names it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


TRANSACTION_TIMEOUT_MS = 10_000
"""Time that a joiner that died in a transaction holds up the readers of examples."""
_ANSWER_TIMEOUT_MS = 10_000
"""Time to wait for any answer: about the time after which Kafka itself treats a silent broker as
dead. The client's default is a minute."""
_REBOOTSTRAP_MS = 5_000
"""Time without metadata after which a client begins again at the bootstrap addresses. The client's
default is five minutes, and a Kafka that was frozen comes back with all its brokers fenced."""


PREFIX_SETTING = "--topics-prefix / HEADRACE_TOPICS_PREFIX"
LONGEST_TOPIC = 249
"""Most characters of a topic's name, by Kafka's rules."""
LONGEST_PREFIX = 100
"""Leaves room for the longest name of a topic."""
_LEGAL = re.compile(r"[a-zA-Z0-9._-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Maps the names of one environment to those in Kafka. Raises KafkaRefused."""

    prefix: str = ""
    """Begins every topic, consumer group and transactional id; empty: names are as they are."""

    def __post_init__(self) -> None:
        if not _LEGAL.fullmatch(self.prefix):
            raise KafkaRefused(
                f"{PREFIX_SETTING}: expected letters, digits, '.', '_' and '-', which Kafka "
                f"allows in names of topics, got {self.prefix!r}: choose a prefix such as team-a."
            )
        if len(self.prefix) > LONGEST_PREFIX:
            raise KafkaRefused(
                f"{PREFIX_SETTING}: expected at most {LONGEST_PREFIX} characters, got "
                f"{len(self.prefix)}: choose a shorter prefix"
            )

    def physical(self, name: str) -> str:
        """Return the name in Kafka of a topic, consumer group or transactional id."""
        return self.prefix + name

    def physical_topic(self, name: str) -> str:
        """Return the name in Kafka of a topic to create. Raises KafkaRefused if it is too long."""
        physical = self.physical(name)
        if self.prefix and len(physical) > LONGEST_TOPIC:
            raise KafkaRefused(
                f"{PREFIX_SETTING}: expected names of topics of at most {LONGEST_TOPIC} "
                f"characters, got {len(physical)} for {physical}: choose a shorter prefix"
            )
        return physical

    def logical(self, physical: str) -> str:
        """Return the name that the processes use for one of this environment's names."""
        return physical.removeprefix(self.prefix)

    def own(self, physical: Iterable[str]) -> list[str]:
        """Return the logical names of those topics in Kafka that have the prefix."""
        return [self.logical(name) for name in physical if name.startswith(self.prefix)]

    def source(self, place: _Place) -> Source:
        """Return a partition, named by the client, as the processes name it."""
        return Source(self.logical(place.topic), place.partition)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Address and timeouts. Flags override HEADRACE_* variables, which override defaults."""

    bootstrap: str
    """host:port of one or more brokers, separated by commas: --kafka or HEADRACE_KAFKA."""
    connect_timeout_s: float = 5.0
    """Time to wait for the first answer; without one, the process reports a wrong address."""
    lost_timeout_s: float = 60.0
    """Time to wait for a lost broker: a restart takes less, an outage more."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings for librdkafka, passed unchanged (security.protocol, sasl.*, ssl.*). Settings that
    exactly-once processing depends on are refused here."""
    names: TopicNames = field(default_factory=TopicNames)
    """Names of the environment's topics, groups and transactional ids: --topics-prefix or
    HEADRACE_TOPICS_PREFIX."""

    def __post_init__(self) -> None:
        taken = sorted(_OURS & set(self.client))
        if taken:
            raise KafkaRefused(
                f"expected settings of the connection only, got {', '.join(taken)}: "
                "headrace fixes delivery and transactions"
            )

    def connection(self) -> dict[str, Any]:
        """Return the part of a client's configuration that describes the connection."""
        return {
            "bootstrap.servers": self.bootstrap,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,  # finds a broker that comes back within a second
            # a broker that is frozen, or behind a cut link, answers no request and closes nothing
            "socket.timeout.ms": _ANSWER_TIMEOUT_MS,
            # brokers that were all fenced at once vanish from the metadata, and from the client
            "metadata.recovery.rebootstrap.trigger.ms": _REBOOTSTRAP_MS,
            "log.connection.close": False,
            "logger": client_log,
            **self.client,
        }


_OURS = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.protocol",
        "isolation.level",
        "partitioner",
        "transactional.id",
    }
)
