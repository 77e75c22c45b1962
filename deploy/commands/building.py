"""Options turned into what the parts are made of."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deploy.errors import BadOption

if TYPE_CHECKING:
    from ingest.settings import KafkaSettings
    from pserver.redis_store import RedisStore


def kafka_settings(bootstrap: str, client: Sequence[str] | None) -> "KafkaSettings":
    """Return how to reach Kafka. `client` are KEY=VALUE. Raises BadOption, KafkaRefused."""
    from ingest.settings import KafkaSettings

    pairs = [each.partition("=") for each in client or ()]
    for key, equals, _ in pairs:
        if not (key and equals):
            raise BadOption(
                f"--kafka-client / HEADRACE_KAFKA_CLIENT: expected KEY=VALUE, found {key!r}"
            )
    return KafkaSettings(bootstrap, client={key: value for key, _, value in pairs})


def open_store(redis: str, model: str) -> "RedisStore":
    """Connect to the store of a model. Raises StoreError, Unreachable, Refused."""
    from pserver.redis_store import open_store

    return open_store(redis, model)
