"""Merges messages of several partitions into one batch, example by example in event-time order.

One message after another would make time jump back and forth by the span of a message, and the
scores of every model suffer from that. A message counts as learned only as a whole, because marks
are offsets of messages. So whole messages are merged, and the model learns them in one call. The
guard, the cursors and the topic of scores then get them message by message, as they came.

`NextWindow` chooses the messages. In a backlog, messages that overlap in event time are merged
together, and only once no partition may still deliver an example that is earlier than their last
one. The joiner ends the messages of all partitions at the same event times, as far as it can
(`ingest.examples.splitting`), so few overlap. If more overlap than a window may have, it ends where
the fewest do. Live messages are short, and they wait for no others that overlap.

A partition whose queue is full delivers nothing. If a message of another partition spans more event
time than the full queue, waiting for its end would never end. Then its begin decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, concatenate, reordered
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.source_order import NextEvent, OrderBounds
from headrace.learner.inputs.slates import slate_order
from headrace.learner.models.sync_group import Quarantined


class ExampleBatch(NamedTuple):
    """The examples of one message, and the place of that message."""

    source: Source
    name: str
    """The name of the source in the store's marks."""
    offset: int
    examples: Examples
    leader_epoch: int = -1
    """Number of the Kafka leader that appended it; -1: unknown."""
    append_ms: int = 0
    """Time when Kafka appended it."""

    @property
    def begin_ms(self) -> int:
        """Event time of its first example."""
        return int(self.examples.event_ms[0])

    @property
    def end_ms(self) -> int:
        """Event time of its last example."""
        return int(self.examples.event_ms[-1])


class NextWindow:
    """The batches of all partitions, and which of them are learned next."""

    def __init__(
        self, queues: Iterable[Iterable[ExampleBatch]], least_delay_ms: int, most: int
    ) -> None:
        """queues: by partition, with a batch in one of them at least. most: examples to merge."""
        self._queues, self._least_delay_ms, self._most = list(queues), least_delay_ms, most
        # the joiner ends messages of all partitions after about as many examples, never exactly
        self._most_overlapping = 2 * most if most > 1 else 1
        self._first = next(self._groups())

    @property
    def following(self) -> NextEvent:
        """The last example of the first batches that overlap; live only if all of them are."""
        end_ms = max(batch.end_ms for batch in self._first)
        delay_ms = min(batch.append_ms - batch.end_ms for batch in self._first)
        return NextEvent(end_ms, end_ms + delay_ms, self._least_delay_ms)

    def within(self, bounds: OrderBounds) -> list[ExampleBatch]:
        """Return the batches with the least event times, of about `most` examples; empty: wait."""
        found: list[ExampleBatch] = []
        total, following_ms = 0, bounds.until_ms
        for group in self._groups():
            if total >= self._most or not all(self._passes(b, b.end_ms, bounds) for b in group):
                following_ms = min(following_ms, group[0].begin_ms)
                break
            found += group
            total += sum(len(batch.examples) for batch in group)
        return self._cut(found, following_ms)

    def begun(self, bounds: OrderBounds) -> list[ExampleBatch]:
        """Return those of the first batches that begin within the bounds."""
        return self._cut(
            [batch for batch in self._first if self._passes(batch, batch.begin_ms, bounds)],
            bounds.until_ms,
        )

    def _cut(self, batches: list[ExampleBatch], following_ms: int) -> list[ExampleBatch]:
        if not batches:
            return []
        begins_ms = [batch.begin_ms for batch in batches[1:]]
        return batches[: _least_overlap(batches, [*begins_ms, following_ms], self._most // 2)]

    def _passes(self, batch: ExampleBatch, event_ms: int, bounds: OrderBounds) -> bool:
        bound_ms = bounds.until_ms
        if not self._live(batch, event_ms):
            bound_ms = min(bound_ms, bounds.at_end_ms)
        return event_ms <= bound_ms

    def _live(self, batch: ExampleBatch, event_ms: int) -> bool:
        return NextEvent(event_ms, batch.append_ms, self._least_delay_ms).live

    def _groups(self) -> Iterator[list[ExampleBatch]]:
        """Yield batches that overlap together, unless they are too many; live ones alone."""
        group: list[ExampleBatch] = []
        total, end_ms = 0, 0
        ordered = heapq.merge(
            *([(each.begin_ms, place, each) for each in q] for place, q in enumerate(self._queues)),
            key=itemgetter(0, 1),
        )
        for begin_ms, _, batch in ordered:
            if group and (begin_ms >= end_ms or total >= self._most_overlapping):
                yield group
                group, total = [], 0
            group.append(batch)
            total += len(batch.examples)
            live = len(group) == 1 and self._live(batch, batch.end_ms)
            end_ms = begin_ms if live else max(batch.end_ms, end_ms if len(group) > 1 else 0)
        yield group


class MergedBatches:
    """Messages, and their examples in the order in which they are learned."""

    def __init__(self, batches: Sequence[ExampleBatch]) -> None:
        self.batches = batches
        self._lengths = [len(batch.examples) for batch in batches]
        self._order: npt.NDArray[np.int64] | None = None
        self.examples = self._merged([batch.examples for batch in batches])

    def _merged(self, parts: list[Examples]) -> Examples:
        whole = concatenate(parts)
        if len(parts) > 1:
            # the clock of a partition never goes back, and its examples keep their order
            reached = {batch.source: 0 for batch in self.batches}
            clocks = []
            for batch in self.batches:
                clock = np.maximum.accumulate(batch.examples.event_ms)
                clocks.append(np.maximum(clock, reached[batch.source]))
                reached[batch.source] = int(clocks[-1][-1])
            self._order = np.argsort(np.concatenate(clocks), kind="stable")
            whole = reordered(whole, self._order)
        together = slate_order(whole)
        if together is not None:
            whole = reordered(whole, together)
            self._order = together if self._order is None else self._order[together]
        return whole

    def of_messages(
        self, scores: npt.NDArray[np.float64]
    ) -> Iterator[tuple[ExampleBatch, npt.NDArray[np.float64]]]:
        """Yield each message with its scores; `scores` are those of the merged examples."""
        if self._order is not None:
            back = np.empty_like(scores)
            back[self._order] = scores
            scores = back
        ends = np.cumsum(self._lengths)
        for batch, length, end in zip(self.batches, self._lengths, ends.tolist(), strict=True):
            yield batch, scores[end - length : end]

    def by_message(self, quarantined: Sequence[Quarantined]) -> list[QuarantinedExamples]:
        """Return the part of quarantined examples that each message has."""
        order = np.arange(len(self.examples)) if self._order is None else self._order
        found = []
        for span in quarantined:
            places, end = order[span.begin : span.end], 0
            for batch, length in zip(self.batches, self._lengths, strict=True):
                begin, end = end, end + length
                own = np.sort(places[(places >= begin) & (places < end)]) - begin
                if own.shape[0]:
                    found.append(QuarantinedExamples(batch, own, span.reason))
        return found


class QuarantinedExamples(NamedTuple):
    """Examples of one message that were not learned, and why."""

    batch: ExampleBatch
    places: npt.NDArray[np.int64]
    reason: str


def _least_overlap(batches: Sequence[ExampleBatch], following_ms: list[int], least: int) -> int:
    """Return how many batches to take, of at least `least` examples if there are as many.

    following_ms: for each batch, the event time at which the next one begins. Examples of a taken
    batch beyond that time are learned before earlier ones; the result keeps these fewest.
    """
    begins = np.array([batch.begin_ms for batch in batches])
    ends = np.array([batch.end_ms for batch in batches]) + 1
    sizes = np.array([len(batch.examples) for batch in batches])
    totals = np.cumsum(sizes)
    lowest = int(np.searchsorted(totals, least)) if totals[-1] > least else 0
    best, fewest = len(batches), np.inf
    for count in range(len(batches), lowest, -1):
        beyond = (ends - max(following_ms[count - 1], 0)) / np.maximum(ends - begins, 1)
        early = float((sizes * np.clip(beyond, 0.0, 1.0))[:count].sum())
        if early < fewest:
            best, fewest = count, early
    return best
