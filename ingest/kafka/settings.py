"""Connection settings of Kafka, shared by every process with a Kafka client."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.ingest.errors import KafkaRefused

if TYPE_CHECKING:
    from collections.abc import Mapping


log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS = 10_000
"""Time that a joiner that died in a transaction holds up the readers of examples."""
_ANSWER_TIMEOUT_MS = 10_000
"""Time to wait for any answer: about the time after which Kafka itself treats a silent broker as
dead. The client's default is a minute."""
_REBOOTSTRAP_MS = 5_000
"""Time without metadata after which a client begins again at the bootstrap addresses. The client's
default is five minutes, and a Kafka that was frozen comes back with all its brokers fenced."""


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
            "logger": log,
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
