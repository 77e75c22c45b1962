"""Joins events in this process, with the core of the joiner and as one partition.

The examples are those that a joiner would write for topics of one partition. The append time of an
event is its own time, so that old events are not late. It is never in the future, as in the
service.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.ingest.events.contract import TIME
from headrace.ingest.examples.batch import Examples, concatenate, reordered
from headrace.ingest.examples.splitting import part_of
from headrace.ingest.features.fields import FieldSet
from headrace.ingest.joiner.core.input import ChunkReader, EventSide
from headrace.ingest.joiner.core.join import PartitionJoiner
from headrace.ingest.kafka.protocols import MessageBlock, Record, Source
from headrace.ingest.logs.ndjson import Line
from headrace.learner.inputs.slates import last_slate, slate_order
from headrace.runtime.clock import wall_ms

EVENTS_A_TURN = 4096


class RefusedEvent(NamedTuple):
    """An event that cannot be used; the service sends it to the topic `dead-letters`."""

    reason: str
    """The expected and the found value."""
    event: bytes
    """The event as JSON."""


class JoinedEvents(NamedTuple):
    """Examples to learn, the candidates of a request together, and the refused events so far."""

    examples: Examples
    refused: tuple[RefusedEvent, ...]


class EventJoin:
    """The join of one stream of events. Not safe for use from several threads."""

    def __init__(self, fields: FieldSet) -> None:
        self._fields = fields
        self._reader, self._joiner = ChunkReader(fields), PartitionJoiner(fields)
        self._offsets = dict.fromkeys(EventSide, 0)
        self._latest_ms = 0
        self._waiting = Examples.empty(fields)
        """Joined examples of a request that the next events may continue."""

    def offer(self, side: EventSide, events: Sequence[tuple[int, bytes]]) -> None:
        """Take messages, each with its time, in the order of these times."""
        for begin in range(0, len(events), EVENTS_A_TURN):
            self._take(side, events[begin : begin + EVENTS_A_TURN])
        if events:
            self._reach(events[-1][0])

    def offer_lines(self, lines: Sequence[Line]) -> None:
        """Take lines of a log in their order: one or more, at most EVENTS_A_TURN."""
        for side in EventSide:
            clicks = side is EventSide.CLICKS
            self._take(
                side, [(each.time_ms, each.value) for each in lines if each.is_click is clicks]
            )
        self._reach(lines[-1].time_ms)

    def joined(self, *, more_follow: bool = False) -> Iterator[JoinedEvents]:
        """Yield the examples that the events so far make.

        more_follow: keep the last request, which may have more candidates in the next events.
        """
        yield from self._until(self._latest_ms, more_follow=more_follow)

    def closed(self) -> Iterator[JoinedEvents]:
        """Close all open label windows, and yield the examples of their impressions."""
        yield from self._until(self._latest_ms + self._fields.label.window_ms + 1)

    def _take(self, side: EventSide, events: Sequence[tuple[int, bytes]]) -> None:
        now_ms = wall_ms()
        timed = [(min(ms, now_ms) if ms > 0 else now_ms, value) for ms, value in events]
        if timed:
            self._send(side, timed)

    def _reach(self, time_ms: int) -> None:
        self._latest_ms = max(self._latest_ms, min(time_ms, wall_ms()))

    def _send(self, side: EventSide, messages: Sequence[tuple[int, bytes]]) -> None:
        """Pass messages with their append times to the joiner."""
        source, first = Source(side.name.lower(), 0), self._offsets[side]
        records = [
            Record(source, first + place, append_ms, value)
            for place, (append_ms, value) in enumerate(messages)
        ]
        self._offsets[side] = first + len(records)
        self._joiner.offer(self._reader.read(side, MessageBlock.of(records)))

    def _until(self, until_ms: int, *, more_follow: bool = False) -> Iterator[JoinedEvents]:
        """Take all events up to a time."""
        ticks = set[tuple[str, int]]()  # refused if no event so far has a usable time
        if until_ms > 0:
            tick = b'{"%s":%d}' % (TIME.encode(), until_ms)
            for side in EventSide:
                ticks.add((side.name.lower(), self._offsets[side]))
                self._send(side, [(until_ms, tick)])
                self._joiner.ended(side)
        complete = False
        while not complete:
            joined = self._joiner.advance(0, EVENTS_A_TURN)
            refused = tuple(
                RefusedEvent(each.reason.value, each.record.value)
                for each in joined.dead
                if (each.record.source.topic, each.record.offset) not in ticks
            )
            complete = not joined.taken and not len(joined.examples)
            waiting = concatenate([self._waiting, joined.examples])
            whole, ready = complete and not more_follow, 0
            if whole or len(waiting) >= EVENTS_A_TURN:
                ready = len(waiting) if whole else last_slate(waiting)
            self._waiting = part_of(waiting, ready, len(waiting))
            yield JoinedEvents(_in_slates(part_of(waiting, 0, ready)), refused)


def _in_slates(examples: Examples) -> Examples:
    order = slate_order(examples)
    return examples if order is None else reordered(examples, order)
