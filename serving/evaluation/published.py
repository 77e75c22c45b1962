"""What evaluation has published, read by whoever wants it: commands, pages, tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ingest.kafka import read_all
from serving.evaluation.errors import EvaluationError
from serving.evaluation.windows import Figures

if TYPE_CHECKING:
    from ingest.settings import KafkaSettings

RESULTS = "evaluation"
"""The compacted topic of all models' figures."""


def read_published(kafka: KafkaSettings, topic: str = RESULTS) -> list[Figures]:
    """Return the figures that were published last, in the order of their keys.

    Raises EvaluationError if there is a message that is none, KafkaUnreachable, MissingTopic.
    """
    last: dict[bytes, bytes] = {}
    for record in read_all(kafka, topic):
        key = record.key or b""
        last.pop(key, None)
        if record.value:
            last[key] = record.value
    try:
        return [msgspec.json.decode(last[key], type=Figures) for key in sorted(last)]
    except msgspec.DecodeError as error:
        raise EvaluationError(f"topic {topic}: expected figures of evaluation: {error}") from error
