"""Merges messages of several partitions into one batch, example by example in event-time order.

One message after another would make time jump back and forth by the span of a message, and the
scores of every model suffer from that. A message counts as learned only as a whole, because marks
are offsets of messages. So whole messages are merged, and the model learns them in one call. The
guard, the cursors and the topic of scores then get them message by message, as they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headrace.ingest.examples import concatenate, reordered
from headrace.learner.inputs import slate_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.learner.loop.example_queue import ExampleBatch
    from headrace.learner.models import Quarantined


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

    def held_of_messages(self, held: Sequence[Quarantined]) -> list[HeldExamples]:
        """Return the part of quarantined examples that each message has."""
        order = np.arange(len(self.examples)) if self._order is None else self._order
        found = []
        for span in held:
            places, end = order[span.begin : span.end], 0
            for batch, length in zip(self.batches, self._lengths, strict=True):
                begin, end = end, end + length
                own = np.sort(places[(places >= begin) & (places < end)]) - begin
                if own.shape[0]:
                    found.append(HeldExamples(batch, own, span.reason))
        return found


class HeldExamples(NamedTuple):
    """Examples of one message that were not learned, and why."""

    batch: ExampleBatch
    places: npt.NDArray[np.int64]
    reason: str
