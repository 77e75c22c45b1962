"""Builds the settings of Kafka and the store from command-line options.

HEADRACE_TOPICS_PREFIX, which --topics-prefix sets, separates environments that share both.
"""

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.deploy.errors import BadOption

if TYPE_CHECKING:
    from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
    from headrace.pserver.redis_backend.redis_store import RedisStore


def kafka_settings(bootstrap: str, client: Sequence[str] | None) -> "KafkaSettings":
    """Return the settings of Kafka. Raises BadOption, KafkaRefused.

    Each item of `client` is KEY=VALUE or a JSON object of settings. For a secret, KEY.file=FILE
    names the file that holds the value.
    """
    from headrace.ingest.kafka.settings import KafkaSettings

    given = _with_secrets(client_settings(client or ()))
    return KafkaSettings(bootstrap, client=given, names=environment_names())


def environment_names() -> "TopicNames":
    """Return the names of this environment in Kafka and the store. Raises KafkaRefused."""
    from headrace.ingest.kafka.settings import TopicNames

    return TopicNames(os.environ.get("HEADRACE_TOPICS_PREFIX", ""))


_SECRETS = (
    *("sasl.password", "sasl.oauthbearer.client.secret"),
    *("ssl.key.password", "ssl.keystore.password", "ssl.key.pem"),
)
"""Settings that may be in a file. librdkafka has other settings whose names end in `.file`."""


def _with_secrets(settings: dict[str, str]) -> dict[str, str]:
    """Return the settings with each secret read from its file."""
    read = dict(settings)
    for key in _SECRETS:
        path = read.pop(f"{key}.file", None)
        if path is None:
            continue
        where = f"--kafka-client / HEADRACE_KAFKA_CLIENT: {key}.file"
        if key in read:
            raise BadOption(f"{where}: expected this or {key}, got both")
        read[key] = secret_of(path, where)
    return read


def secret_of(path: str, where: str) -> str:
    """Return the text of a file without the line break at its end. Raises BadOption.

    where: the option that names the file.
    """
    try:
        secret = Path(path).read_text("utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else "other bytes than UTF-8"
        raise BadOption(f"{where}: expected a file with a secret, got {path}: {found}") from None
    if not secret:
        raise BadOption(f"{where}: expected a file with a secret, got {path}, which is empty")
    return secret


def client_settings(items: Sequence[str]) -> dict[str, str]:
    """Return the settings of the Kafka client by name. Raises BadOption, without any value."""
    settings: dict[str, str] = {}
    for item in items:
        if item.startswith("{"):
            settings |= _settings_of_json(item)
            continue
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise BadOption(
                f"--kafka-client / HEADRACE_KAFKA_CLIENT: expected KEY=VALUE, got {key!r}"
            )
        settings[key] = value
    return settings


def client_variable(items: Sequence[str]) -> dict[str, str]:
    """Return the environment that hands these settings to a child process.

    A command line would show passwords to other users. Variables of repeatable options are split at
    white space, hence JSON, in which white space is escaped.
    """
    if not items:
        return {}
    encoded = json.dumps(client_settings(items), separators=(",", ":"))
    return {"HEADRACE_KAFKA_CLIENT": re.sub(r"\s", lambda at: f"\\u{ord(at[0]):04x}", encoded)}


def _settings_of_json(text: str) -> dict[str, str]:
    try:
        decoded = json.loads(text)
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict) or not all(isinstance(v, str) for v in decoded.values()):
        raise BadOption(
            "--kafka-client / HEADRACE_KAFKA_CLIENT: expected a JSON object of strings without "
            "spaces (write one as \\u0020), got other text that begins with {"
        )
    return decoded


def redis_url(url: str) -> str:
    """Return the URL, completed by HEADRACE_REDIS_USER and HEADRACE_REDIS_PASSWORD.

    They have no flags, because other users can read the command lines of processes.
    HEADRACE_REDIS_PASSWORD_FILE names a file that holds the password. Raises BadOption.
    """
    from headrace.pserver.redis_backend.address import with_login

    user, password = (os.environ.get(f"HEADRACE_REDIS_{name}") for name in ("USER", "PASSWORD"))
    path = os.environ.get("HEADRACE_REDIS_PASSWORD_FILE")
    if path and password is not None:
        raise BadOption(
            "expected HEADRACE_REDIS_PASSWORD or HEADRACE_REDIS_PASSWORD_FILE, got both"
        )
    if path:
        password = secret_of(path, "HEADRACE_REDIS_PASSWORD_FILE")
    return with_login(url, user, password)


def open_store(
    redis: str, model: str, *, read_only: bool = False, sub_hashes: int | None = None
) -> "RedisStore":
    """Connect to the store of a model. Raises StoreError, Unreachable, Refused.

    read_only: the servers then need no functions. sub_hashes: see StoreSettings.
    """
    from headrace.pserver.redis_backend.redis_store import StoreSettings, open_store

    prefix = environment_names().prefix
    settings = StoreSettings(sub_hashes=sub_hashes, read_only=read_only, key_prefix=prefix)
    return open_store(redis_url(redis), model, settings)


def kafka_words(kafka: str) -> list[str]:
    """Return the options that give a shown command the same Kafka."""
    prefix = environment_names().prefix
    return ["--kafka", kafka, *(["--topics-prefix", prefix] if prefix else [])]


def redis_words(redis: str) -> list[str]:
    """Return the options that give a shown command the same store.

    None for a URL with a password: the command needs HEADRACE_REDIS.
    """
    return [] if "@" in redis else ["--redis", redis]


def addresses_line(kafka: str, redis: str) -> str:
    """Return the line for a shell that gives its commands the same Kafka and store."""
    shown = {"HEADRACE_KAFKA": kafka}
    if "@" not in redis:
        shown["HEADRACE_REDIS"] = redis
    prefix = environment_names().prefix
    if prefix:
        shown["HEADRACE_TOPICS_PREFIX"] = prefix
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in shown.items())
    return f"for commands in other terminals:\nexport {words}"
