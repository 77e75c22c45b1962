"""Reads the refusals of a model, with their reasons, from the topic `dead-letters`.

The joiner refuses events, and learners quarantine batches of examples. The topic has a letter about
each, with the reason. It is shared by all models of a Kafka, so a letter counts once per origin.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from headrace.ingest.dead_letters.letter import Letter
from headrace.ingest.dead_letters.letter import unpack as unpack_letter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.bounded_reader import read_all
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, examples_topic
from headrace.learner.loop.guard.batch_guard import quarantine_reason
from headrace.learner.loop.marks.parked_marks import ParkedMessage
from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.printable_text import printable

_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class RefusalReason:
    """Everything that was refused for one reason."""

    reason: str
    """Numbers in a quarantine's reason are those of the first batch."""
    count: int
    """Events, or examples of quarantined batches."""
    example: str
    """The first event, shortened; of a batch its place in the topic of examples."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Events and batches that a model refused."""

    quarantined_batches: int = 0
    """Batches that learners quarantined (`headrace.learner.loop.guard.batch_guard`)."""
    quarantined_examples: int = 0
    quarantined: tuple[RefusalReason, ...] = ()
    events: tuple[RefusalReason, ...] = ()
    """Unusable events, the most frequent reason first."""
    parked: tuple[ParkedMessage, ...] = ()
    """Messages of examples that are not learned so far, but not refused either."""


def read_refusals(
    kafka: KafkaSettings, spec: ModelSpec, since: Mapping[Source, int] | None = None
) -> Refusals:
    """Return the refusals of this model from the dead letters. A repeated letter counts once.

    since: only letters from these offsets on. A group of learners quarantines parts of a batch,
    with a letter about each.
    """
    since = since or {}
    topics, examples = EventTopics(), examples_topic(spec.name)
    refused: dict[object, Letter] = {}
    events: dict[object, Letter] = {}
    for record in read_all(kafka, topics.dead_letters):
        if record.offset < since.get(record.source, 0):
            continue
        letter = unpack_letter(record.value)
        if not isinstance(letter, Letter):
            continue
        if letter.topic == examples:
            refused[letter.origin, letter.value] = letter
        elif letter.topic in (topics.impressions, topics.clicks):
            events[letter.origin] = letter
    quarantined = [(*quarantine_reason(each.reason), str(each.origin)) for each in refused.values()]
    return Refusals(
        len({each.origin for each in refused.values()}),
        sum(examples for examples, _, _ in quarantined),
        _by_reason(quarantined),
        _by_reason((1, each.reason, _shown(each)) for each in events.values()),
    )


def _by_reason(found: Iterable[tuple[int, str, str]]) -> tuple[RefusalReason, ...]:
    reasons: dict[str, RefusalReason] = {}
    for count, reason, example in found:
        # two batches whose loss jumped were refused for one reason, whatever their losses
        kind = re.sub(r"\d[\d.e+-]*", "#", reason)
        known = reasons.get(kind) or RefusalReason(printable(reason), 0, example)
        reasons[kind] = replace(known, count=known.count + count)
    return tuple(sorted(reasons.values(), key=lambda each: -each.count))


def _shown(letter: Letter) -> str:
    text = printable(letter.event_bytes.decode("utf-8", "replace"))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
