"""Reads the open dead letters: those whose event was neither sent back nor discarded.

It reads the topic twice, first for settlements, then for letters, so that memory holds origins
instead of events. The joiners of several models each write a letter about the same event: the first
one stands for all.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.ingest.dead_letters.letter import Letter, Origin, SettledLetters, unpack
from headrace.ingest.kafka.reading.bounded_reader import high_watermarks, read_until
from headrace.ingest.kafka.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """The selection of letters."""

    reason: str = ""
    """A word as in metrics (`bad_time`), or a part of the sentence; "": any."""
    topic: str = ""
    """The topic that held the event; "": any."""
    since_ms: int = 0
    """Events appended to Kafka at this time or later."""
    until_ms: int | None = None
    """Events appended to Kafka before this time."""

    def takes(self, letter: Letter) -> bool:
        """Whether the letter is selected."""
        return (
            (self.reason.lower() == letter.reason_name or self.reason in letter.reason)
            and self.topic in ("", letter.topic)
            and self.since_ms <= letter.append_ms
            and (self.until_ms is None or letter.append_ms < self.until_ms)
        )


class DeadLetters:
    """The letters in the topic of dead letters at this time.

    Raises KafkaUnreachable, MissingTopic, NotAllowed.
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        # a settlement may be hidden by an open transaction of a joiner; without it, its events
        # would be sent twice
        self._ends = high_watermarks(settings, topic)
        self.retried: set[Origin] = set()
        self.discarded: set[Origin] = set()
        for record in read_until(settings, topic, self._ends):
            message = unpack(record.value)
            if isinstance(message, SettledLetters):
                self.retried.update(message.retried)
                self.discarded.update(message.discarded)

    def letters(self, choice: Choice) -> Iterator[Letter]:
        """Yield the selected open letters, one for each event, in the order written."""
        seen: set[Origin] = set()
        for record in read_until(self._settings, self._topic, self._ends):
            letter = unpack(record.value)
            if not isinstance(letter, Letter) or not choice.takes(letter):
                continue
            origin = letter.origin
            if origin not in self.retried and origin not in self.discarded and origin not in seen:
                seen.add(origin)
                yield letter
