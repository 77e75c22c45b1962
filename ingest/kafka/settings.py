"""How to reach Kafka: the one group of settings that every process with a Kafka client has."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.ingest.errors import KafkaRefused

if TYPE_CHECKING:
    from collections.abc import Mapping


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where Kafka is and how patient to be with it. Flags beat HEADRACE_* variables beat these."""

    bootstrap: str
    """host:port of one or more brokers, with commas between: --kafka or HEADRACE_KAFKA."""
    connect_timeout_s: float = 5.0
    """A first answer within this, else the address is wrong and the process says so and stops."""
    lost_timeout_s: float = 60.0
    """No broker for so long while running: a restart of a broker takes less, an outage more."""
    client: Mapping[str, str] = field(default_factory=dict)
    """For librdkafka as they are (security.protocol, sasl.*, ssl.*): how to be let in. What the
    exactly-once protocol rests on is not to be overridden here and is refused."""

    def __post_init__(self) -> None:
        taken = sorted(_OURS & set(self.client))
        if taken:
            raise KafkaRefused(
                f"expected settings of the connection alone, found {', '.join(taken)}: "
                "delivery and transactions are fixed by headrace"
            )

    def connection(self) -> dict[str, Any]:
        """Return the part of a client's configuration that says how to connect."""
        return {
            "bootstrap.servers": self.bootstrap,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,  # a broker that comes back is found within a second
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
