"""What stops a learner, beside what the parameter server and Kafka have to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ingest.stream import Source


class LearnerError(Exception):
    """A learner cannot go on; the message says what an operator can do."""


class MarkOutsideTopic(LearnerError):
    """The store's marks and the topic do not fit: examples are gone, or never were there."""

    def __init__(self, source: Source, name: str, mark: int, first: int, end: int) -> None:
        lacking = (
            f"examples {mark} to {first} were deleted before they were learned"
            if mark < first
            else "the topic was truncated, or the store belongs to another one"
        )
        super().__init__(
            f"{source.topic}/{source.partition} ({name}): the parameter server has learned up to "
            f"offset {mark}, the topic holds {first} to {end}: {lacking}. Restore a snapshot that "
            f"fits the topic, or begin a new model."
        )
