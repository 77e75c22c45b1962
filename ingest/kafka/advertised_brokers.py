"""Asks Kafka for its topics, and checks that this machine reaches the brokers.

A client knows one address, of the setting, and continues at the addresses that the brokers
advertise. If those are wrong for this machine, as in many first set-ups, metadata arrives and
every other request waits until its timeout. The error then names neither the address nor the
setting of the broker, so it is found here first.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ClusterMetadata,
)

from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.kafka.error_translation import translate, translated

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings

_PATIENCE_S = 2.0
"""A broker in reach accepts a connection in a few milliseconds."""


class _Client(Protocol):
    def list_topics(self, *, timeout: float) -> Any:
        """Return the brokers and topics."""


def listed_topics(
    client: _Client, settings: KafkaSettings, doing: str = "connecting"
) -> ClusterMetadata:
    """Return the brokers and topics of Kafka. Raises KafkaUnreachable, NotAllowed."""
    with translated(doing, settings.bootstrap):
        found: ClusterMetadata = client.list_topics(timeout=settings.connect_timeout_s)
    check_advertised(settings, found)
    return found


def answering_admin(settings: KafkaSettings) -> AdminClient:
    """Return a client that a broker has answered; if none does, the error has the reason.

    "No broker answers" can mean a wrong password or a listener without TLS. The client reports that
    only to its error callback.
    """
    errors: list[KafkaError] = []
    # the error raised below has the reason once; the client would log it at every attempt
    quiet: dict[str, Any] = {"error_cb": errors.append, "log_level": 0}
    with translated("creating a client", settings.bootstrap):
        admin = AdminClient({**settings.connection(), **quiet})
    try:
        found = admin.list_topics(timeout=settings.connect_timeout_s)
    except KafkaException as error:
        admin.poll(0.0)
        raise translate(errors[0] if errors else error, "connecting", settings.bootstrap) from error
    check_advertised(settings, found)
    return admin


def check_advertised(settings: KafkaSettings, found: ClusterMetadata) -> None:
    """Check that one of the advertised addresses can be reached, unless it just answered.

    Raises KafkaUnreachable.
    """
    brokers = [(each.host, each.port) for each in found.brokers.values()]
    addresses = {each.strip().rpartition("://")[2] for each in settings.bootstrap.split(",")}
    if not brokers or any(f"{host}:{port}" in addresses for host, port in brokers):
        return
    deadline_s = time.monotonic() + settings.connect_timeout_s
    failures = []
    for host, port in brokers:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0.0:
            break
        try:
            socket.create_connection((host, port), min(_PATIENCE_S, left_s)).close()
        except OSError as error:
            failures.append(f"{host}:{port} ({error.strerror or error})")
        else:
            return
    raise KafkaUnreachable(
        f"Kafka at {settings.bootstrap} answers, but it advertises other addresses for its "
        f"brokers, and none can be reached from here: {', '.join(failures)}. Set "
        "advertised.listeners of the brokers to addresses that this machine reaches"
    )
