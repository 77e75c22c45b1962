"""Splits examples into messages of bounded number, size and span of event time.

Learners read the partitions in the order of event time, message by message. A message that spans a
long time puts them out of order. But a message costs the same with seven examples as with seven
hundred, and sparse traffic puts only few examples out of order. Hence the least size.

Kafka refuses a message above a size, and a joiner that made one could never go on: the same backlog
makes the same message again. So the bytes of a message are bounded, for any events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from headrace.ingest.examples.batch import Examples
from headrace.ingest.features import Encoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


_FIXED_BYTES = 64
"""Of one example: kind, label, times, weight and the offsets of its strings."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The limits of one message of examples."""

    most: int = 4096
    """Most examples: a few hundred kilobytes, some milliseconds of a learner's time."""
    span_ms: int = 60_000
    """Longest event time: how far learners may be out of order between partitions."""
    least: int = 128
    """Examples before the time span counts; else sparse traffic sends a message for each."""
    most_bytes: int = 4 << 20
    """Bytes of ids, bags and strings; one example may have more (LARGEST_EXAMPLE_BYTES). A quarter
    of what the topic takes: the columns in between cost little."""


def cut(examples: Examples, rule: Cut) -> Iterator[Examples]:
    """Yield `examples` in consecutive parts."""
    reached_ms = np.maximum.accumulate(examples.event_ms)
    begin, count = 0, len(examples)
    sizes = np.concatenate(([0], np.cumsum(example_bytes(examples))))
    while begin < count:
        beyond = int(np.searchsorted(reached_ms, reached_ms[begin] + rule.span_ms, side="right"))
        end = min(max(beyond, begin + rule.least), begin + rule.most, count)
        fitting = int(np.searchsorted(sizes, sizes[begin] + rule.most_bytes, side="right")) - 1
        end = min(end, max(fitting, begin + 1))
        yield part_of(examples, begin, end)
        begin = end


def example_bytes(examples: Examples) -> npt.NDArray[np.int64]:
    """Return the bytes of each example: ids, numbers, bags and strings; shape (n,)."""
    count, features = len(examples), examples.features
    bags = (features.bag_offsets.shape[0] - 1) // count if count else 0
    fixed = _FIXED_BYTES + 8 * features.ids.shape[1] + 4 * features.numbers.shape[1] + 4 * bags
    sizes = np.full(count, fixed, np.int64)
    if bags:
        ends = features.bag_offsets[::bags].astype(np.int64)
        sizes += 8 * (ends[1:] - ends[:-1])
    for strings in (examples.impression_ids, examples.request_ids, *examples.slices.values()):
        lengths = pc.fill_null(pc.binary_length(strings), 0)
        sizes += lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


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
