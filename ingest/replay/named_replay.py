"""The name of a replay that the same command continues, and the name under which one has begun.

`headrace run` names its replay after its logs and the model of the first run. The same command then
continues after an interruption. So does a run of another model: its joiner reads all events that
Kafka has, and a second copy of them would be older than those. Another log, another order or other
columns are another replay: their lines would not follow the count of lines that were sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import REPLAYS_TOPIC, ensure_topics, replays_spec

if TYPE_CHECKING:
    from headrace.ingest.logs.layout import LogLayout
    from headrace.ingest.logs.ndjson import EventLog


def replay_name(
    model: str, logs: Sequence[EventLog], layout: LogLayout | None, *, sort: bool
) -> str:
    """Return the name of the replay of these logs for a model. layout, sort: of `open_log`."""
    files = [f"{log.path.resolve()}:{log.bytes_total}" for log in logs]
    read = msgspec.json.encode([files, layout, sort])
    return f"run.{model}.{hashlib.blake2b(read, digest_size=8).hexdigest()}"


def begun_name(kafka: KafkaSettings, name: str) -> str | None:
    """Return the name under which a replay of the same logs has begun; None if none has.

    It is `name`, or that of another model. Raises KafkaUnreachable.
    """
    ensure_topics(kafka, [replays_spec()])
    keys = {record.key.decode() for record in read_all(kafka, REPLAYS_TOPIC) if record.key}
    logs = name.rpartition(".")[2]
    same = {each for each in keys if each.startswith("run.") and each.endswith(f".{logs}")}
    return name if name in same else min(same, default=None)


def model_of(name: str) -> str:
    """Return the model of the run that began a replay of this name."""
    return name.removeprefix("run.").rpartition(".")[0]
