"""Splits examples into messages of some thousand, or a minute of event time, at most.

Learners read the partitions in the order of event time, message by message. A message that spans a
long time puts them out of order. But a message costs the same with seven examples as with seven
hundred, and sparse traffic puts only few examples out of order. Hence the least size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features import Encoded

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Cut:
    """The limits of one message of examples."""

    most: int = 4096
    """Most examples: a few hundred kilobytes, some milliseconds of a learner's time."""
    span_ms: int = 60_000
    """Longest event time: how far learners may be out of order between partitions."""
    least: int = 128
    """Examples before the time span counts; else sparse traffic sends a message for each."""


def cut(examples: Examples, rule: Cut) -> Iterator[Examples]:
    """Yield `examples` in consecutive parts."""
    reached_ms = np.maximum.accumulate(examples.event_ms)
    begin, count = 0, len(examples)
    while begin < count:
        beyond = int(np.searchsorted(reached_ms, reached_ms[begin] + rule.span_ms, side="right"))
        end = min(max(beyond, begin + rule.least), begin + rule.most, count)
        yield part_of(examples, begin, end)
        begin = end


def part_of(examples: Examples, begin: int, end: int) -> Examples:
    """Return the examples from `begin` up to `end`."""
    count = len(examples)
    if begin == 0 and end == count:
        return examples
    features = examples.features
    bags = (features.bag_offsets.shape[0] - 1) // count
    offsets = features.bag_offsets[begin * bags : end * bags + 1]
    return Examples(
        fingerprint=examples.fingerprint,
        watermark_ms=examples.watermark_ms,
        kinds=examples.kinds[begin:end],
        labels=examples.labels[begin:end],
        event_ms=examples.event_ms[begin:end],
        shown_ms=examples.shown_ms[begin:end],
        append_ms=examples.append_ms[begin:end],
        impression_ids=examples.impression_ids[begin:end],
        request_ids=examples.request_ids[begin:end],
        features=Encoded(
            ids=features.ids[begin:end],
            bag_ids=features.bag_ids[offsets[0] : offsets[-1]],
            bag_offsets=offsets - offsets[0],
            numbers=features.numbers[begin:end],
        ),
        slices={name: values[begin:end] for name, values in examples.slices.items()},
        weights=None if examples.weights is None else examples.weights[begin:end],
        negative_rate=examples.negative_rate,
    )
