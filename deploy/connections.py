"""Options turned into what the parts are made of."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from headrace.ingest.kafka import KafkaSettings
    from headrace.pserver.redis_backend import RedisStore


def kafka_settings(bootstrap: str, client: Sequence[str] | None) -> "KafkaSettings":
    """Return how to reach Kafka. `client` are KEY=VALUE. Raises BadOption, KafkaRefused."""
    from headrace.ingest.kafka import KafkaSettings

    pairs = [each.partition("=") for each in client or ()]
    for key, equals, _ in pairs:
        if not (key and equals):
            raise BadOption(
                f"--kafka-client / HEADRACE_KAFKA_CLIENT: expected KEY=VALUE, found {key!r}"
            )
    return KafkaSettings(bootstrap, client={key: value for key, _, value in pairs})


def redis_url(url: str) -> str:
    """Return the URL with HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD where it has none.

    They have no flags: what stands on a command line stands in the list of processes.
    """
    from headrace.pserver.redis_backend import with_login

    user, password = (os.environ.get(f"HEADRACE_REDIS_{name}") for name in ("USER", "PASSWORD"))
    return with_login(url, user, password)


def open_store(redis: str, model: str, *, read_only: bool = False) -> "RedisStore":
    """Connect to the store of a model. Raises StoreError, Unreachable, Refused.

    `read_only`: the process writes nothing, so the servers need no functions for it.
    """
    from headrace.pserver.redis_backend import StoreSettings, open_store

    return open_store(redis_url(redis), model, StoreSettings(read_only=read_only))
