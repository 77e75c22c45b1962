"""Joins one partition of impressions and clicks into labelled examples.

The core is pure: its caller offers messages (as chunks), marks a source that has no more for now,
and passes the time of a clock that only goes forward. The core takes the event with the lesser
event time of the two heads, and waits for a source that may still have an earlier one. A source at
its end holds up the other only as long as wall time says: the time that passed since, or that
passed at Kafka between the appends of two events. Event time is never taken to be "now", so history
is joined as it happened, at any speed. The rules are in `rules`, the loop over events in `kernel`.

After each `advance`, `checkpoint` returns in a few hundred bytes how to get back here: read from
the rewind offsets to the positions without output. `restore` does that. The output afterwards is
the same as without the restart.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.ingest.events.contract import Reason
from headrace.ingest.examples.batch import Examples, concatenate
from headrace.ingest.features.fields import FieldSet, Policy
from headrace.ingest.joiner.core import rules
from headrace.ingest.joiner.core.checkpoint import InputPosition, JoinerCheckpoint, JoinerCounters
from headrace.ingest.joiner.core.input import (
    EventBuffers,
    EventChunk,
    EventSide,
    no_rows,
    only_read,
)
from headrace.ingest.joiner.core.kernel import run
from headrace.ingest.joiner.core.output import gather
from headrace.ingest.joiner.core.rules import FOREVER, NEVER, WAIT, JoinedRows, JoinRule
from headrace.ingest.joiner.core.watermark import time_of
from headrace.ingest.joiner.core.window_state import WindowState
from headrace.ingest.kafka.protocols import Record
from headrace.ingest.kafka.reading.source_order import NextEvent

_MARK_ROWS = 1024
"""Events between two rewind marks: fewer marks mean a little more to read again."""
_SIDES = (EventSide.IMPRESSIONS, EventSide.CLICKS)
_CLOCKS = (rules.SHOWN_CLOCK, rules.CLICKED_CLOCK)
_COUNTERS = {
    "impressions": rules.IMPRESSIONS,
    "clicks": rules.CLICKS,
    "late_clicks": rules.LATE_CLICKS,
    "unmatched_clicks": rules.UNMATCHED_CLICKS,
    "duplicate_impressions": rules.DUPLICATE_IMPRESSIONS,
    "duplicate_clicks": rules.DUPLICATE_CLICKS,
    "examples": rules.EXAMPLES,
    "dead_letters": rules.DEAD_LETTERS,
    "ticks": rules.TICKS,
    "dropped_negatives": rules.DROPPED_NEGATIVES,
}


class DeadEvent(NamedTuple):
    """An unusable message."""

    record: Record
    reason: Reason


class Joined(NamedTuple):
    """The output of one `advance`."""

    examples: Examples
    dead: list[DeadEvent]
    taken: int
    """Events taken, of any kind."""


class _ReadMark(NamedTuple):
    """A place to read again from: the state just before `offset` was taken."""

    sequence: int
    offset: int
    clock_ms: int


class _Source:
    """One of the two inputs: chunks offered and not yet taken, and its position."""

    def __init__(self, empty: EventChunk) -> None:
        self.chunk, self.next = empty, 0
        self.queue: deque[EventChunk] = deque()
        self.ended = False
        self.base: tuple[int, int] | None = None
        """Event time reached, and the wall time then, since the source is at its end."""
        self.position = -1
        self.marks: deque[_ReadMark] = deque()
        self.unmarked = _MARK_ROWS

    @property
    def queued(self) -> int:
        return len(self.chunk) - self.next + sum(map(len, self.queue))

    def moved(self, place: int) -> None:
        """Note that the chunk was taken up to `place`."""
        if place > self.next:
            self.unmarked += place - self.next
            self.next = place
            complete = place == len(self.chunk)
            self.position = self.chunk.stop if complete else int(self.chunk.offsets[place - 1]) + 1

    def turn(self, sequence: int, clock_ms: int) -> None:
        """Go to the next chunk, if this one is done and another is queued."""
        if self.next < len(self.chunk) or not self.queue:
            return
        self.chunk, self.next = self.queue.popleft(), 0
        if self.unmarked >= _MARK_ROWS:
            self.marks.append(_ReadMark(sequence, int(self.chunk.offsets[0]), clock_ms))
            self.unmarked = 0


class PartitionJoiner:
    """Joins one partition of impressions with the same partition of clicks."""

    def __init__(self, fields: FieldSet) -> None:
        self.fields = fields
        label = fields.label
        self._window_ms, closing = label.window_ms, label.policy is Policy.WINDOW
        self._policy = label.window_ms, label.delay_ms, closing
        self._keep_below = np.uint64(fields.weights.keep_below)
        self._restoring: JoinerCheckpoint | None = None
        self._forget()

    def offer(self, chunk: EventChunk) -> None:
        """Queue messages that follow the messages offered before from the same source."""
        source = self._sources[chunk.side]
        if len(chunk):
            source.queue.append(chunk)
            source.ended, source.base = False, None

    def ended(self, side: EventSide) -> None:
        """Note that the source has no more messages for now. The next offer revokes it."""
        self._sources[side].ended = True

    def queued(self, side: EventSide) -> int:
        """Return the number of messages offered and not yet taken."""
        return self._sources[side].queued

    @property
    def following(self) -> NextEvent | None:
        """The earliest of the next events of both sources; `advance` may have to wait for it."""
        least_delay_ms, found = int(self._state[rules.LEAST_DELAY]), []
        for source in self._sources:
            chunk, place = source.chunk, source.next
            if place == len(chunk) and source.queue:
                chunk, place = source.queue[0], 0
            if place < len(chunk):
                time_ms = int(time_of(chunk.arrays, place, self._window_ms))
                append_ms = int(chunk.arrays.append_ms[place])
                found.append(NextEvent(time_ms, append_ms, least_delay_ms))
        return min(found, default=None)

    def queued_ms(self, every: int) -> npt.NDArray[np.int64]:
        """Return the event times of messages offered and not taken: the first, and one in `every`.

        Ticks and refused events are among them.
        """
        arrays = [source.chunk.arrays.event_ms[source.next :: every] for source in self._sources]
        for source in self._sources:
            arrays += [chunk.arrays.event_ms[::every] for chunk in source.queue]
        return np.concatenate(arrays)

    @property
    def watermark_ms(self) -> int:
        """Event time reached; far below zero before the first event."""
        return int(self._state[rules.WATERMARK])

    @property
    def counters(self) -> JoinerCounters:
        """The counts over all restarts."""
        if self._restoring is not None:
            return self._restoring.counters
        return JoinerCounters(**{name: int(self._state[at]) for name, at in _COUNTERS.items()})

    @property
    def window(self) -> WindowState:
        """The window state: pending impressions, waiting clicks, their memory. Read-only."""
        return self._window

    @property
    def restoring(self) -> bool:
        """Whether input is still being read again; there is no output until that is done."""
        return self._restoring is not None

    def advance(
        self,
        now_ms: int,
        limit: int = 4096,
        until_ms: int = FOREVER,
        at_end_ms: int = FOREVER,
    ) -> Joined:
        """Take events; return the examples and dead letters they make.

        Stops after about `limit` events or examples, before an event later than the bounds of
        other partitions (`SourceOrder.bounds`), or when it must wait. `now_ms` comes from a clock
        that never goes back.
        """
        parts: list[Examples] = []
        dead: list[DeadEvent] = []
        taken, examples, capacity = 0, 0, limit
        if self._restoring is not None:
            self._read_again()
        while self._restoring is None and max(taken, examples) < limit:
            self._turn()
            left = limit - max(taken, examples)
            shown, clicked = (self._floor(source, now_ms) for source in self._sources)
            bounds = shown, clicked, until_ms, at_end_ms, left
            rule = JoinRule(*self._policy, False, *bounds, self._keep_below)
            joined = _result_arrays(max(capacity, left))
            answer = self._run(joined, rule, [len(source.chunk) for source in self._sources], dead)
            if joined.counts[0]:
                parts.append(gather(self.fields, self._window.rings, joined, self.watermark_ms))
            taken, examples = taken + int(joined.counts[2]), examples + int(joined.counts[0])
            if answer == rules.GROW:
                capacity = int(self._state[rules.NEEDED]) + rules.MARGIN
            elif answer == rules.BLOCKED and not joined.counts.any():
                break
        for source in self._sources:
            self._floor(source, now_ms)  # records since when a source is at its end
        self._window.release()
        if not parts:
            parts.append(Examples.empty(self.fields, self.watermark_ms))
        return Joined(concatenate(parts), dead, taken)

    def checkpoint(self) -> JoinerCheckpoint:
        """Return how to get back to this state."""
        if self._restoring is not None:
            return self._restoring
        return JoinerCheckpoint(
            self.watermark_ms,
            int(self._state[rules.LEAST_DELAY]),
            self._input_position(EventSide.IMPRESSIONS, self._shown_mark()),
            self._input_position(EventSide.CLICKS, self._clicked_mark()),
            self.counters,
        )

    def restore(self, checkpoint: JoinerCheckpoint) -> None:
        """Forget everything and get back to `checkpoint`.

        The caller then offers both sources from their rewind offsets (-1: from the beginning).
        """
        self._forget()
        self._restoring = checkpoint
        self._state[rules.WATERMARK] = checkpoint.watermark_ms
        self._state[rules.LEAST_DELAY] = checkpoint.least_delay_ms
        for source, clock, reading in self._restored_inputs(checkpoint):
            self._state[clock] = reading.rewind_clock_ms
            source.position = reading.rewind
        self._read_again()

    def _forget(self) -> None:
        fields = self.fields
        self._window = WindowState(
            len(fields.singles), len(fields.numbers) + bool(fields.weights.source)
        )
        self._state = np.zeros(rules.STATE_SIZE, np.int64)
        self._state[[rules.WATERMARK, *_CLOCKS]] = NEVER
        self._state[rules.LEAST_DELAY] = FOREVER
        self._sources = [_Source(_no_chunk(side)) for side in _SIDES]
        self._restoring = None

    def _restored_inputs(
        self, checkpoint: JoinerCheckpoint
    ) -> list[tuple[_Source, int, InputPosition]]:
        readings = (checkpoint.shown, checkpoint.clicked)
        return list(zip(self._sources, _CLOCKS, readings, strict=True))

    def _read_again(self) -> None:
        """Take the events before the positions of the checkpoint, without output."""
        checkpoint = self._restoring
        assert checkpoint is not None
        forever = (FOREVER,) * 5
        rule = JoinRule(*self._policy, True, *forever, self._keep_below)
        while True:
            self._turn()
            stops = [
                int(np.searchsorted(source.chunk.offsets, reading.position))
                for source, _, reading in self._restored_inputs(checkpoint)
            ]
            joined = _result_arrays(0)
            self._run(joined, rule, stops, [])
            self._window.release()
            if not joined.counts[2]:
                break
        for source, _, reading in self._restored_inputs(checkpoint):
            reached = source.position >= reading.position or source.next < len(source.chunk)
            if not (reached or (source.ended and not source.queued)):
                return
        for source, clock, reading in self._restored_inputs(checkpoint):
            self._state[clock] = reading.clock_ms
            source.position = reading.position
        for name, at in _COUNTERS.items():
            self._state[at] = getattr(checkpoint.counters, name)
        self._restoring = None

    def _run(
        self, joined: JoinedRows, rule: JoinRule, stops: list[int], dead: list[DeadEvent]
    ) -> int:
        shown, clicked = self._sources
        cursor = np.array([shown.next, stops[0], clicked.next, stops[1]], np.int64)
        window = self._window
        window.reserve(shown.chunk.rows, shown.next, max(shown.next, stops[0]), len(clicked.chunk))
        arrays = shown.chunk.arrays, shown.chunk.rows, clicked.chunk.arrays
        answer = int(run(window.rings, self._state, *arrays, cursor, joined, rule))
        for i in range(int(joined.counts[1])):
            chunk = self._sources[joined.dead_sides[i]].chunk
            place = int(joined.dead_places[i])
            assert chunk.block is not None
            reason = chunk.refused.get(place, Reason.TOO_LATE)
            dead.append(DeadEvent(chunk.block.record(place), reason))
        shown.moved(int(cursor[0]))
        clicked.moved(int(cursor[2]))
        return answer

    def _turn(self) -> None:
        for source, clock in zip(self._sources, _CLOCKS, strict=True):
            source.turn(int(self._window.ends.entry_tail[0]), int(self._state[clock]))

    def _floor(self, source: _Source, now_ms: int) -> int:
        """Return how far event time may go without this source; WAIT if it may not go at all."""
        if not source.ended or source.queued:
            return WAIT
        clock = _CLOCKS[self._sources.index(source)]
        reached = int(max(self._state[rules.WATERMARK], self._state[clock]))
        if source.base is None:
            source.base = reached, now_ms
        floor = source.base[0] + now_ms - source.base[1]
        if reached > floor:
            source.base, floor = (reached, now_ms), reached
        return floor

    def _shown_mark(self) -> _ReadMark | None:
        """Return the mark from which to restore all entries and repeats; None without any.

        Entries need the events from the first entry on. The first event of a repeat may be any time
        back. But two windows of events, which tell duplicates from first events, and two windows of
        the duplicates themselves contain the same information.
        """
        ends, marks = self._window.ends, self._sources[EventSide.IMPRESSIONS].marks
        head = int(ends.entry_head[0])
        horizon = int(self._state[rules.SHOWN_CLOCK]) - 4 * self._window_ms
        while len(marks) > 1 and marks[1].sequence <= head and marks[1].clock_ms < horizon:
            marks.popleft()
        if ends.repeat_head[0] < ends.repeat_tail[0]:
            return marks[0]
        if head == ends.entry_tail[0]:
            return None
        return next(mark for mark in reversed(marks) if mark.sequence <= head)

    def _clicked_mark(self) -> _ReadMark | None:
        """Return the mark from which to restore the clicks that wait or that open entries met."""
        horizon = self.watermark_ms - 2 * self._window_ms
        marks = self._sources[EventSide.CLICKS].marks
        while len(marks) > 1 and marks[1].clock_ms < horizon:
            marks.popleft()
        if not marks or self._state[rules.CLICKED_CLOCK] < horizon:
            return None
        return marks[0]

    def _input_position(self, side: EventSide, mark: _ReadMark | None) -> InputPosition:
        position, clock_ms = self._sources[side].position, int(self._state[_CLOCKS[side]])
        if mark is None:
            return InputPosition(position, position, clock_ms, clock_ms)
        return InputPosition(position, mark.offset, clock_ms, mark.clock_ms)


def _result_arrays(limit: int) -> JoinedRows:
    size = limit + rules.MARGIN
    return JoinedRows(
        np.empty(size, np.uint8),
        np.empty(size, np.uint8),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.empty(size, np.uint8),
        np.empty(size, np.int64),
        np.zeros(3, np.int64),
    )


def _no_chunk(side: EventSide) -> EventChunk:
    none, times = np.zeros(0, np.uint8), np.zeros(0, np.int64)
    arrays = only_read(EventBuffers(none, times, times, np.zeros(0, np.uint64)))
    return EventChunk(side, 0, times, arrays, no_rows(), None, {})
