"""The topics of events, a producer with faults, and the list of the events that it sent.

The producer repeats events, sends clicks before their impressions, dates some hours ahead, and
sends messages that are not events. Its list gives the expected rows: every impression counts once,
and its click counts once. The rows of the joined worlds are compared with this list alone.
"""

import functools
import random
from base64 import b85encode
from collections import Counter
from typing import NamedTuple

import orjson

from headrace.ingest.features.encoder import Encoder
from headrace.ingest.kafka.protocols import Record, Source
from tests.simulation.batches import FIELDS, Total, step_of, summed
from tests.simulation.plan import Plan
from tests.simulation.topic import TopicLife

IMPRESSIONS, CLICKS = "impressions", "clicks"
_LATEST_MS = 300
"""Milliseconds from an event to its append."""
_FAR_AHEAD_MS = 20 * 3_600_000
"""Beyond the label window, and not so far that the contract refuses it."""
_CLOCKS_AHEAD_MS = (-600_000, -60_000, -1_500, 0, 1_500, 60_000, 600_000)
_LONG_ID_BYTES = 500
"""Random part of a hostile impression id."""
_FLOOD = 24
"""Large impressions at once: together more than a message of examples can hold."""
_REPEATED = 0.1
"""Share of the events that a producer sends twice."""
_NO_EVENTS = (b"", b"{", b'{"timestamp_ms":1}', b'{"impression_id":"x"}')


class EventLogs:
    """The topics of impressions and clicks; the same partition of both goes to one joiner."""

    def __init__(self, partitions: int) -> None:
        self.shares: list[tuple[Source, ...]] = [
            (Source(IMPRESSIONS, partition), Source(CLICKS, partition))
            for partition in range(partitions)
        ]
        self.now = TopicLife("events", [source for share in self.shares for source in share])

    def append(self, source: Source, value: bytes, append_ms: int, *, marker: bool) -> int:
        """Add a message, and perhaps a marker of a transaction; return its offset."""
        life = self.now
        offset = life.ends[source]
        epoch = len(life.epochs[source]) - 1
        life.records[source].append(Record(source, offset, append_ms, value, leader_epoch=epoch))
        life.ends[source] = offset + (2 if marker else 1)
        return offset


class _Event(NamedTuple):
    """An impression or a click that counts, and where it is first in its log."""

    source: Source
    offset: int
    name: str
    """Of the impression."""
    rows: tuple[int, int, int]
    second: int

    @property
    def shown(self) -> bool:
        """Whether this is an impression."""
        return self.source.topic == IMPRESSIONS

    def gain(self, row: int) -> Total:
        """Return what one of its rows gains."""
        return int(self.shown), int(not self.shown), self.second, self.second, step_of(row)


class Producer:
    """Sends events, and keeps the list of them."""

    def __init__(
        self, topics: EventLogs, plan: Plan, dice: random.Random, tally: Counter[str]
    ) -> None:
        self._topics, self._plan, self._dice, self._tally = topics, plan, dice, tally
        self._count = 0
        self._events: list[_Event] = []
        """Every event that counts."""
        self._unclicked: list[list[tuple[str, tuple[int, int, int]]]]
        self._unclicked = [[] for _ in topics.shares]
        """Impressions of each partition without a click so far: id and rows."""
        self._ahead_ms: dict[Source, int] = {}
        """By how much the clock of the broker with a log is ahead of the producer's."""
        self.refused: list[tuple[str, int, int]] = []
        """Topic, partition and offset of messages that must become dead letters."""

    def send(self, partition: int, now_ms: int) -> None:
        """Send some events; of a hostile producer, a backlog of large ones at times."""
        dice = self._dice
        flood = dice.random() < self._plan.hostile
        self._tally["floods of large events"] += flood
        for _ in range(_FLOOD if flood else dice.randint(1, 3)):
            self._impression(partition, now_ms, _LONG_ID_BYTES if flood else 0)
            if dice.random() < 0.4:
                self._click(partition, now_ms)
        if dice.random() < self._plan.hostile:
            self._no_event(partition, now_ms)

    def move_a_log(self) -> None:
        """Let another broker append to a log; its clock differs by up to ten minutes."""
        source = self._dice.choice(list(self._topics.now.records))
        self._ahead_ms[source] = self._dice.choice(_CLOCKS_AHEAD_MS)
        self._tally["logs moved to a broker with another clock"] += 1

    def truth(self) -> dict[int, Total]:
        """Return what every row must have gained."""
        shown = {event.name: event.second for event in self._events if event.shown}
        counted = [event for event in self._events if event.name in shown]
        if self._plan.wait_s:
            counted = [event._replace(second=shown[event.name]) for event in counted]
        return summed([(row, event.gain(row)) for event in counted for row in event.rows])

    def lose(self, source: Source, end: int, letters: list[tuple[str, int, int]]) -> None:
        """Take from the list what a log lost when it was cut to `end`, but not `letters` of it."""

        def kept(topic: str, partition: int, offset: int) -> bool:
            return (topic, partition) != tuple(source) or offset < end

        self._events = [event for event in self._events if kept(*event.source, event.offset)]
        self.refused = [place for place in self.refused if kept(*place) or place in letters]
        shown = {event.name for event in self._events if event.shown}
        for waiting in self._unclicked:
            waiting[:] = [impression for impression in waiting if impression[0] in shown]

    def _impression(self, partition: int, now_ms: int, long: int) -> None:
        dice, values = self._dice, self._plan.values
        self._count += 1
        name = f"{self._count}-{b85encode(dice.randbytes(long)).decode()}"
        user, item = dice.randrange(values), dice.randrange(values)
        ids = _rows(user, item)
        event: dict[str, object] = {"impression_id": name, "user": f"u{user}", "item": f"i{item}"}
        early = dice.random() < 0.1  # its click overtakes it
        if early:
            self._send_click(partition, now_ms, name, ids)
        self._send(Source(IMPRESSIONS, partition), event, now_ms, ids)
        if not early:
            self._unclicked[partition].append((name, ids))

    def _click(self, partition: int, now_ms: int) -> None:
        waiting = self._unclicked[partition]
        if waiting:
            chosen = waiting.pop(self._dice.randrange(len(waiting)))
            self._send_click(partition, now_ms, *chosen)

    def _send_click(
        self, partition: int, now_ms: int, name: str, ids: tuple[int, int, int]
    ) -> None:
        self._send(Source(CLICKS, partition), {"impression_id": name}, now_ms, ids)

    def _send(
        self, source: Source, event: dict[str, object], now_ms: int, ids: tuple[int, int, int]
    ) -> None:
        dice = self._dice
        stated_ms = now_ms - dice.randint(0, _LATEST_MS)
        if dice.random() < self._plan.far_ahead:
            self._tally["events dated far ahead"] += 1
            stated_ms = now_ms + _FAR_AHEAD_MS
        value, append_ms = (
            orjson.dumps(event | {"timestamp_ms": stated_ms}),
            now_ms + self._ahead_ms.get(source, 0),
        )
        offset = self._topics.append(source, value, append_ms, marker=dice.random() < 0.2)
        if dice.random() < _REPEATED:
            self._tally["events sent twice"] += 1
            self._topics.append(source, value, append_ms, marker=False)
        name, second = str(event["impression_id"]), min(stated_ms, append_ms) // 1000
        self._events.append(_Event(source, offset, name, ids, second))

    def _no_event(self, partition: int, now_ms: int) -> None:
        source = Source(self._dice.choice((IMPRESSIONS, CLICKS)), partition)
        value = self._dice.choice(_NO_EVENTS)
        append_ms = now_ms + self._ahead_ms.get(source, 0)
        offset = self._topics.append(source, value, append_ms, marker=False)
        self._tally["messages that are not events"] += 1
        self.refused.append((*source, offset))


@functools.cache
def _rows(user: int, item: int) -> tuple[int, int, int]:
    """Return the rows of an event, as the product's encoder names them."""
    encoded = Encoder(FIELDS).encode([{"user": f"u{user}", "item": f"i{item}"}])
    one, two, three = encoded.ids[0].tolist()
    return one, two, three
