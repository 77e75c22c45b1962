"""The name of a replay that the same command continues, and whether one of a name has begun.

`headrace run` names its replay after the model and its logs. The same command then continues after
an interruption, and another log, another order or other columns are another replay: their lines
would not follow the count of lines that were sent.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.kafka import REPLAYS_TOPIC, ensure_topics, read_all, replays_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.ingest.kafka import KafkaSettings
    from headrace.ingest.logs import EventLog, LogLayout


def replay_name(
    model: str, logs: Sequence[EventLog], layout: LogLayout | None, *, sort: bool
) -> str:
    """Return the name of the replay of these logs for a model. layout, sort: of `open_log`."""
    files = [f"{log.path.resolve()}:{log.bytes_total}" for log in logs]
    read = msgspec.json.encode([files, layout, sort])
    return f"run.{model}.{hashlib.blake2b(read, digest_size=8).hexdigest()}"


def has_begun(kafka: KafkaSettings, name: str) -> bool:
    """Whether an earlier replay of this name has sent lines. Raises KafkaUnreachable."""
    ensure_topics(kafka, [replays_spec()])
    return any(record.key == name.encode() for record in read_all(kafka, REPLAYS_TOPIC))
