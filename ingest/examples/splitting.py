"""Splits examples into messages of bounded number, size and span of event time.

Learners merge the partitions in the order of event time, and only whole messages. So messages of
all partitions should end at the same event times: then they merge without a remainder. The joiner
chooses these times for all its partitions at once (`common_ends`). It prefers round times, so that
several joiners often choose the same ones. A time is rounder if a larger power of two divides it.

A message that spans a long time puts learners out of order where its end is not a common one. But a
message costs the same with seven examples as with seven hundred. Hence the least size.

Kafka refuses a message above a size, and a joiner that made one could never go on: the same backlog
makes the same message again. So the bytes of a message are bounded, for any events. A message that
these bounds end does not end between candidates of one request, which learners score together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.ingest.examples.batch import Examples, made_of
from headrace.ingest.features.encoder import Encoded

_FIXED_BYTES = 64
"""Of one example: kind, label, times, weight and the offsets of its strings."""


_REQUEST_EXAMPLES = 512
"""A longer request is divided: a message must end somewhere."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The limits of one message of examples."""

    most: int = 4096
    """Most examples: a few hundred kilobytes, some milliseconds of a learner's time."""
    span_ms: int = 60_000
    """Longest event time: how far learners may be out of order between partitions."""
    least: int = 128
    """Examples of a partition before the time span counts, on average over partitions; else sparse
    traffic sends a message for each. A message that waits for a rounder time has more."""
    merged: int = 8192
    """Examples of all partitions between two common ends, about as many as learners merge at once:
    of many partitions, each has fewer than `least`."""
    most_bytes: int = 4 << 20
    """Bytes of ids, bags and strings; one example may have more (LARGEST_EXAMPLE_BYTES). A quarter
    of what the topic takes: the columns in between cost little."""


def common_ends(reached_ms: Sequence[npt.NDArray[np.int64]], rule: Cut) -> npt.NDArray[np.int64]:
    """Return the event times at which the messages of several partitions end; ascending.

    reached_ms: for each partition, the greatest event time up to each of its examples.
    """
    times, ends = np.sort(np.concatenate(reached_ms), kind="stable"), []
    span = min(2 * rule.least * len(reached_ms), max(rule.merged, 2 * rule.least))
    begin = 0
    while begin < times.shape[0]:
        beyond = int(np.searchsorted(times, times[begin] + rule.span_ms, side="right"))
        last = max(beyond, begin + span)
        if last >= times.shape[0]:
            break
        # in the second half of the span, where the highest bit of event time changes
        first = (begin + last + 1) // 2
        _, roundness = np.frexp((times[first - 1 : last] ^ times[first : last + 1]).astype(float))
        begin = first + int(np.argmax(roundness))
        ends.append(int(times[begin]))
    return np.array(ends, np.int64)


def reached_ms(examples: Examples) -> npt.NDArray[np.int64]:
    """Return the greatest event time up to each example."""
    clock: npt.NDArray[np.int64] = np.maximum.accumulate(examples.event_ms)
    return clock


def cut(
    examples: Examples, rule: Cut, ends_ms: npt.NDArray[np.int64] | None = None
) -> Iterator[Examples]:
    """Yield `examples` in consecutive parts.

    ends_ms: `common_ends` with other partitions; None: there are no others.
    """
    clock = reached_ms(examples)
    if ends_ms is None:
        ends_ms = common_ends([clock], rule)
    ends = np.searchsorted(clock, ends_ms, side="left").tolist()
    ends = [_past_request(examples.request_ids, end) for end in ends]
    sizes = np.concatenate(([0], np.cumsum(example_bytes(examples))))
    begin = 0
    for stop in [*ends, len(examples)]:
        while begin < stop:
            fitting = int(np.searchsorted(sizes, sizes[begin] + rule.most_bytes, side="right")) - 1
            end = min(stop, begin + rule.most, max(fitting, begin + 1))
            if end < stop:
                end = _between_requests(examples.request_ids, begin, end)
            yield part_of(examples, begin, end)
            begin = end


def _past_request(requests: pa.StringArray, end: int) -> int:
    """Return the first end from `end` on that divides no request, of those nearby."""
    for near in range(end, min(end + _REQUEST_EXAMPLES, len(requests))):
        if not near or not requests[near].is_valid or requests[near] != requests[near - 1]:
            return near
    return end


def _between_requests(requests: pa.StringArray, begin: int, end: int) -> int:
    """Return the last end in the second half up to `end` that divides no request; else `end`."""
    first = (begin + end + 1) // 2
    before = requests.slice(first - 1, end - first + 1)
    same = pc.fill_null(pc.equal(before, requests.slice(first, end - first + 1)), False)
    ends = np.flatnonzero(~same.to_numpy(zero_copy_only=False))
    return first + int(ends[-1]) if ends.shape[0] else end


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
    bags = (features.bag_offsets.shape[0] - 1) // max(count, 1)
    offsets = features.bag_offsets[begin * bags : end * bags + 1]
    part = Encoded(
        ids=features.ids[begin:end],
        bag_ids=features.bag_ids[offsets[0] : offsets[-1]],
        bag_offsets=offsets - offsets[0],
        numbers=features.numbers[begin:end],
    )
    return made_of([examples], part, lambda columns: columns[0][begin:end])
