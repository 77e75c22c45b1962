"""Asks Kafka for its topics, and checks that this machine reaches the brokers.

A client knows one address, of the setting, and continues at the addresses that the brokers
advertise. If those are wrong for this machine, as in many first set-ups, metadata arrives and
every other request waits until its timeout. The error then names neither the address nor the
setting of the broker, so it is found here first.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
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
_ATTEMPTS = 3
"""New clients that ask after one got no answer."""


class _Client(Protocol):
    def list_topics(self, *, timeout: float) -> Any:
        """Return the brokers and topics."""


def listed_topics(
    client: _Client, settings: KafkaSettings, doing: str = "connecting"
) -> ClusterMetadata:
    """Return the brokers and topics of Kafka. Raises KafkaUnreachable, NotAllowed."""
    with translated(doing, settings.bootstrap):
        try:
            found: ClusterMetadata = client.list_topics(timeout=settings.connect_timeout_s)
        except KafkaException:
            _check_unanswered(settings)
            raise
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
        _check_unanswered(settings)
        admin.poll(0.0)
        raise translate(errors[0] if errors else error, "connecting", settings.bootstrap) from error
    check_advertised(settings, found)
    return admin


def check_advertised(settings: KafkaSettings, found: ClusterMetadata) -> None:
    """Check that one of the advertised addresses can be reached, unless it just answered.

    Raises KafkaUnreachable.
    """
    brokers = [f"{each.host}:{each.port}" for each in found.brokers.values()]
    if not brokers or not set(brokers).isdisjoint(_addresses(settings)):
        return
    failures = _failures(settings, brokers)
    if failures is None:
        return
    raise KafkaUnreachable(
        f"Kafka at {settings.bootstrap} answers, but it advertises other addresses for its "
        f"brokers, and none can be reached from here: {', '.join(failures)}. Set "
        "advertised.listeners of the brokers to addresses that this machine reaches"
    )


def _check_unanswered(settings: KafkaSettings) -> None:
    """Check what the brokers advertise, after a client that asked for it got no answer.

    Each client also asks on its own. If it gets that answer first, it sends the caller's request to
    the advertised addresses. New clients therefore ask again, unless no address of the setting can
    be reached. Raises KafkaUnreachable.
    """
    if _failures(settings, _addresses(settings)) is not None:
        return
    for _ in range(_ATTEMPTS):
        asking = AdminClient({**settings.connection(), "log_level": 0})
        with suppress(KafkaException):
            check_advertised(settings, asking.list_topics(timeout=_PATIENCE_S))
            return


def _addresses(settings: KafkaSettings) -> list[str]:
    return [each.strip().rpartition("://")[2] for each in settings.bootstrap.split(",")]


def _failures(settings: KafkaSettings, addresses: Iterable[str]) -> list[str] | None:
    """Return why none of these addresses can be reached; None if one can."""
    deadline_s = time.monotonic() + settings.connect_timeout_s
    failures = []
    for address in addresses:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0.0:
            break
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), min(_PATIENCE_S, left_s)
            ).close()
        except (OSError, ValueError) as error:
            failures.append(f"{address} ({getattr(error, 'strerror', None) or error})")
        else:
            return None
    return failures
