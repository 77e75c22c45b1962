"""The watermark of a partition: the greatest event time taken from either source; compiled.

Windows close by the watermark (`rules`). It never goes back, and event time is its only clock.

The time of an event is its timestamp, but not later than its append to Kafka. Otherwise a producer
whose clock is hours ahead would hold up its partition for hours. Examples have this time too: for
row expiry, evaluation and metrics, the newest event is the present. The time of a tick is at most
the window and 1 ms after its append: the last tick of a replay closes every window, even that of an
event appended just before. A later tick would make all impressions until then too late.

A source at its end may still deliver an event of any time. Wall time bounds how long it holds up
the other source, and so does the wall time that Kafka's appends reveal. While one source is at its
end, an event of the other is taken if event time has not passed its own append less the least delay
from event to append ever seen. So a backlog of an hour does not take an hour. History that is
replayed faster than it happened has ever smaller delays, and waits for its other half.
"""

import numpy as np

from headrace.ingest.joiner.core.input import EventBuffers
from headrace.ingest.joiner.core.rules import (
    EVENT,
    FOREVER,
    LEAST_DELAY,
    NEVER,
    TICK,
    WAIT,
    WATERMARK,
)
from headrace.runtime.kernels.numba_kernels import inlined, kernel


@kernel
def time_of(arrays, i, window_ms):  # type: ignore[no-untyped-def]
    """Return the time of event `i`: its timestamp, bounded by its append."""
    event_ms, append_ms = arrays.event_ms[i], arrays.append_ms[i]
    if append_ms <= 0:
        return event_ms
    ahead_ms = window_ms + 1 if arrays.roles[i] == TICK else 0
    return min(event_ms, append_ms + ahead_ms)


def reached_ms(arrays: EventBuffers, window_ms: int) -> int:
    """Return the greatest event time of a chunk."""
    ahead_ms = np.where(arrays.roles == TICK, window_ms + 1, 0)
    bounded = np.minimum(arrays.event_ms, arrays.append_ms + ahead_ms)
    return int(np.where(arrays.append_ms > 0, bounded, arrays.event_ms).max(initial=NEVER))


@inlined
def floor_of(state, floor, append_ms):  # type: ignore[no-untyped-def]
    """Return how far event time may go without the other source, by wall time here or at Kafka."""
    if floor == WAIT:
        return WAIT
    if state[WATERMARK] == NEVER:
        return FOREVER  # the first event sets the clock
    return max(floor, state[WATERMARK], append_ms - state[LEAST_DELAY])


@inlined
def advance(state, arrays, i, time_ms):  # type: ignore[no-untyped-def]
    """Note that event `i` was taken: the watermark and the least delay follow."""
    state[WATERMARK] = max(state[WATERMARK], time_ms)
    if arrays.roles[i] == EVENT and arrays.append_ms[i] > 0:
        state[LEAST_DELAY] = min(state[LEAST_DELAY], arrays.append_ms[i] - time_ms)
