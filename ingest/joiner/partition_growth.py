"""Adds partitions to the topics of living models, without losing or doubling an example.

A producer places an event by its key and the number of partitions. The joiner joins a partition of
clicks with the same partition of impressions, and no other. If topics grew while a label window is
open, a click could arrive in another partition than its impression. The joiner would count it as
unmatched, and the example would keep label 0.

So topics grow only when every label window is closed and every event is joined. A click that
arrives later is too late in any partition. For this the producers of impressions pause for one
label window. Clicks may go on. After the growth, all producers start again, those of clicks first:
a client reads the number of partitions at its start, and then only every few minutes.

Topics of output grow before topics of input, so that a new partition of input always has its
output. Joiners and learners run on: Kafka assigns them the new partitions, which begin at offset 0.
A growth that was interrupted is completed by the next one.

*Refused:* to place clicks by the old number for one window. The joiner cannot, because producers
place them, and each producer sees the growth at another time. *Refused:* to join all partitions
with the same remainder until the window has closed. It would need no pause, but each side of a
joiner would have several logs, and its checkpoint several positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.errors import MissingTopic, TopicMismatch
from headrace.ingest.kafka.protocols import PartitionAssigned, Source
from headrace.ingest.kafka.reading.bounded_reader import last_records
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import (
    EventTopics,
    examples_topic,
    grow_topics,
    joiner_group,
    scores_topic,
)
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.ingest.joiner.committed_state import JoinerModel

SETTLE_MS = 5_000
"""For a click that was made in the window and is still on its way, and for clocks that differ."""

_LOOK_S = 1.0


class OpenWindows(NamedTuple):
    """The reasons why topics may not grow yet."""

    lag: int
    """Events that a joiner has not joined."""
    wait_ms: int
    """Time until the last label window closes; 0 or less: all are closed."""
    shown: int
    """Offsets of impressions so far, in all partitions."""

    @property
    def closed(self) -> bool:
        """Whether no click may change an example any more."""
        return self.lag == 0 and self.wait_ms <= 0


class Growth(NamedTuple):
    """The result of a growth."""

    grown: list[str]
    """Topics that had fewer partitions."""
    arrived: int
    """Impressions that were written during the growth. Their clicks may be unmatched."""


def check_growth(
    counts: Mapping[str, int],
    models: Iterable[str],
    partitions: int,
    topics: EventTopics | None = None,
) -> None:
    """Check that all topics of these models may grow to that number of partitions.

    `counts`: partitions of every topic that exists. Raises MissingTopic and TopicMismatch.
    """
    names, models = topics or EventTopics(), list(models)
    needed = [names.impressions, names.clicks, *map(examples_topic, models)]
    missing = [topic for topic in needed if topic not in counts]
    if missing:
        fewest = min((counts[topic] for topic in needed if topic in counts), default=partitions)
        raise MissingTopic(
            f"expected topics {', '.join(needed)}, got no {', '.join(missing)}: `headrace ingest "
            f"topics --model FILE --partitions {fewest}` creates them"
        )
    prefix = examples_topic("")
    living = {topic.removeprefix(prefix) for topic in counts if topic.startswith(prefix)}
    unnamed = sorted(living - set(models))
    if unnamed:
        raise TopicMismatch(
            f"expected the specs of all models that share {names.impressions}, got none of "
            f"{', '.join(unnamed)}: name each with --model, or delete its topic "
            f"{examples_topic(unnamed[0])} if the model is gone"
        )
    found = {topic: counts[topic] for topic in needed}
    if max(found.values()) > partitions:
        more = ", ".join(f"{topic} {count}" for topic, count in found.items() if count > partitions)
        raise TopicMismatch(
            f"expected topics of at most {counted(partitions, 'partition')}, got {more}: Kafka "
            "cannot remove partitions"
        )
    # a growth that was interrupted left some topics behind, and all of those with the same number
    behind = {count for count in found.values() if count < partitions}
    if len(behind) > 1:
        text = ", ".join(f"{topic} {count}" for topic, count in found.items())
        raise TopicMismatch(f"expected the same number of partitions, got {text}")


def open_windows(
    kafka: KafkaSettings,
    models: Sequence[JoinerModel],
    now_ms: int,
    topics: EventTopics | None = None,
) -> OpenWindows:
    """Return what joiners have yet to join, and when the last label window closes.

    `now_ms`: Unix time. Raises KafkaUnreachable, also while a transaction stays open.
    """
    names = topics or EventTopics()
    shown, clicked = _bounds(kafka, names.impressions), _bounds(kafka, names.clicks)
    appended_ms = max((r.append_ms for r in last_records(kafka, shown).values()), default=0)
    lag, closes_ms = 0, 0
    for model in models:
        offsets = KafkaOffsets(kafka, joiner_group(model.name))
        try:
            committed = offsets.committed([*shown, *clicked])
        finally:
            offsets.close()
        for source, (first, end) in (shown | clicked).items():
            joined = committed[source].offset if source in committed else first
            lag += max(0, end - joined)
        closes_ms = max(closes_ms, appended_ms + model.fields.label.window_ms + SETTLE_MS)
    return OpenWindows(lag, closes_ms - now_ms, _sum_of_ends(shown))


def check_awaited(
    looked: OpenWindows, counts: Mapping[str, int], topics: EventTopics | None = None
) -> None:
    """Check that a joiner can join what waits: none starts if the topics differ in partitions.

    `counts`: partitions of every topic that exists. Raises TopicMismatch.
    """
    names = topics or EventTopics()
    shown, clicked = counts[names.impressions], counts[names.clicks]
    if looked.lag and shown != clicked:
        raise TopicMismatch(
            f"expected that every event is joined before topics grow, got "
            f"{counted(looked.lag, 'event')} to join, and numbers of partitions with which no "
            f"joiner starts: {names.impressions} {shown}, {names.clicks} {clicked}. If a joiner "
            "still runs, grow again when it has joined them. Else delete the topic with fewer "
            "partitions and send its events again, or grow with --accept-unmatched: their clicks "
            "may be unmatched"
        )


def _bounds(kafka: KafkaSettings, topic: str) -> dict[Source, tuple[int, int]]:
    """Return the first offset and the end of each partition, open transactions included."""
    with closing(KafkaReader(kafka, None, [topic], read_committed=False)) as reader:
        gained = [e.source for e in reader.poll(0.0) if isinstance(e, PartitionAssigned)]
        return {source: reader.bounds(source) for source in gained}


def _sum_of_ends(bounds: Mapping[Source, tuple[int, int]]) -> int:
    return sum(end for _, end in bounds.values())


def await_closed(
    look: Callable[[], OpenWindows],
    report: Callable[[OpenWindows], None],
    sleep: Callable[[float], None] = time.sleep,
) -> OpenWindows:
    """Wait until every label window is closed; report each time the state has changed."""
    reported = None
    while not (found := look()).closed:
        state = found.lag, found.wait_ms > 0
        if state != reported:
            report(found)
            reported = state
        sleep(_LOOK_S)
    return found


def grow(
    kafka: KafkaSettings,
    models: Iterable[str],
    partitions: int,
    looked: OpenWindows,
    topics: EventTopics | None = None,
    further: Iterable[str] = (),
) -> Growth:
    """Give all topics of the models that many partitions.

    `looked`: the last result of `open_windows`. `further`: more topics that have the partitions of
    the impressions, if they exist. The caller has checked with `check_growth`.
    """
    names, outputs = topics or EventTopics(), list(further)
    for model in models:
        outputs += [scores_topic(model), examples_topic(model)]
    grown = grow_topics(kafka, outputs, partitions)
    grown += grow_topics(kafka, [names.clicks, names.impressions], partitions)
    return Growth(grown, _sum_of_ends(_bounds(kafka, names.impressions)) - looked.shown)
