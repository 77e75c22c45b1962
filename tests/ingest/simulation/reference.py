"""A plain reference for the rules of joining: Python over lists, without eviction."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.ingest.events.contract import IMPRESSION_ID, TIME, Reason, is_tick, read_event
from headrace.ingest.joiner.core.checkpoint import JoinerCounters
from headrace.ingest.joiner.core.input import EventSide
from headrace.ingest.kafka.protocols import Record

NEVER, FOREVER = -(1 << 61), 1 << 61
WAIT = -(1 << 62)

Event = dict[str, object]


class Made(NamedTuple):
    """One example."""

    kind: str
    label: int
    event_ms: int
    append_ms: int
    impression: Record
    """The impression whose fields the example has."""


@dataclass
class _Message:
    record: Record
    event: Event | Reason
    window_ms: int

    @property
    def stated_ms(self) -> int:
        assert isinstance(self.event, dict)
        stated = self.event[TIME]
        assert isinstance(stated, int)
        return stated

    @property
    def time_ms(self) -> int:
        assert isinstance(self.event, dict)
        if self.record.append_ms <= 0:
            return self.stated_ms
        ahead_ms = self.window_ms + 1 if is_tick(self.event) else 0
        return min(self.stated_ms, self.record.append_ms + ahead_ms)


@dataclass
class _Entry:
    identity: object
    message: _Message
    clock: int
    last: int
    clicked: bool = False
    made: bool = False


@dataclass
class _Click:
    identity: object
    message: _Message
    clock: int
    over: bool = False
    too_late: bool = False
    """For the impression that was seen."""


@dataclass
class _Source:
    queue: list[_Message] = field(default_factory=list)
    ended: bool = False
    base: tuple[int, int] | None = None
    clock: int = NEVER


class Reference:
    """Joins one partition."""

    def __init__(self, window_ms: int, delay_ms: int, closing: bool) -> None:
        self.window_ms, self.delay_ms, self.closing = window_ms, delay_ms, closing
        self.watermark_ms, self.least_delay_ms = NEVER, FOREVER
        self.sources = {side: _Source() for side in EventSide}
        self.entries: list[_Entry] = []
        self.waiting: list[_Click] = []
        self.made: list[Made] = []
        self.dead: list[tuple[Record, Reason]] = []
        self.counted = dict.fromkeys(JoinerCounters.__struct_fields__, 0)

    def offer(self, side: EventSide, records: Sequence[Record]) -> None:
        source = self.sources[side]
        for record in records:
            event = read_event(record.value, record.append_ms)
            source.queue.append(_Message(record, event, self.window_ms))
            source.ended, source.base = False, None

    def end(self, side: EventSide) -> None:
        self.sources[side].ended = True

    def restart(self, now_ms: int) -> None:
        """Restart: the silence of a source begins anew, because a checkpoint does not store it."""
        for side, source in self.sources.items():
            source.base = None
            self._floor(side, now_ms)

    def advance(self, now_ms: int) -> None:
        """Take every event that can be taken."""
        while self._step(now_ms):
            pass
        for side in EventSide:
            self._floor(side, now_ms)

    def _step(self, now_ms: int) -> bool:
        for source in self.sources.values():
            if source.queue and isinstance(source.queue[0].event, Reason):
                message = source.queue.pop(0)
                assert isinstance(message.event, Reason)
                self._bury(message, message.event)
                return True
        heads = {side: source.queue[0] if source.queue else None for side, source in self._both()}
        nexts: dict[EventSide, int] = {}
        for side, other in (
            (EventSide.IMPRESSIONS, EventSide.CLICKS),
            (EventSide.CLICKS, EventSide.IMPRESSIONS),
        ):
            head, opposite = heads[side], heads[other]
            if head is not None:
                nexts[side] = head.time_ms
                continue
            nexts[side] = self._floor(side, now_ms)
            if opposite is not None and nexts[side] != WAIT:
                appended = opposite.record.append_ms - self.least_delay_ms
                nexts[side] = max(nexts[side], self.watermark_ms, appended)
                if self.watermark_ms == NEVER:
                    nexts[side] = FOREVER
        self._make_before(min(nexts.values()))
        shown, clicked = heads[EventSide.IMPRESSIONS], heads[EventSide.CLICKS]
        if shown is not None and nexts[EventSide.IMPRESSIONS] <= nexts[EventSide.CLICKS]:
            self.sources[EventSide.IMPRESSIONS].queue.pop(0)
            self._take_shown(shown)
        elif clicked is not None and nexts[EventSide.CLICKS] <= nexts[EventSide.IMPRESSIONS]:
            self.sources[EventSide.CLICKS].queue.pop(0)
            self._take_clicked(clicked)
        else:
            return False
        return True

    def _both(self) -> list[tuple[EventSide, _Source]]:
        return list(self.sources.items())

    def _floor(self, side: EventSide, now_ms: int) -> int:
        source = self.sources[side]
        if not source.ended or source.queue:
            return WAIT
        reached = max(self.watermark_ms, source.clock)
        if source.base is None:
            source.base = reached, now_ms
        floor = source.base[0] + now_ms - source.base[1]
        if reached > floor:
            source.base, floor = (reached, now_ms), reached
        return floor

    def _bury(self, message: _Message, reason: Reason) -> None:
        self.dead.append((message.record, reason))
        self.counted["dead_letters"] += 1

    def _reach(self, message: _Message) -> None:
        self.watermark_ms = max(self.watermark_ms, message.time_ms)
        assert isinstance(message.event, dict)
        if not is_tick(message.event) and message.record.append_ms > 0:
            delay_ms = message.record.append_ms - message.time_ms
            self.least_delay_ms = min(self.least_delay_ms, delay_ms)

    def _make(self, made: Made) -> None:
        self.made.append(made)
        self.counted["examples"] += 1

    def _make_before(self, until_ms: int) -> None:
        for entry in self.entries:
            if not entry.made and entry.clock + self.delay_ms < until_ms:
                self.watermark_ms = max(self.watermark_ms, entry.clock + self.delay_ms + 1)
                self._make_of(entry)
                self._give_up_clicks()

    def _make_of(self, entry: _Entry) -> None:
        entry.made = True
        kind = "closed" if self.closing or entry.clicked else "shown"
        shown, event_ms = entry.message.record, entry.message.time_ms
        event_ms += 0 if self.closing else self.delay_ms
        self._make(Made(kind, int(entry.clicked), event_ms, shown.append_ms, shown))

    def _take_shown(self, message: _Message) -> None:
        source, window_ms = self.sources[EventSide.IMPRESSIONS], self.window_ms
        assert isinstance(message.event, dict)
        self._reach(message)
        if not is_tick(message.event) and message.time_ms < source.clock - window_ms:
            self._bury(message, Reason.TOO_LATE)
            return
        source.clock = max(source.clock, message.time_ms)
        self._give_up_clicks()
        if is_tick(message.event):
            self.counted["ticks"] += 1
            return
        identity = message.event[IMPRESSION_ID]
        entry = self._living(identity)
        if entry is not None:
            self.counted["duplicate_impressions"] += 1
            entry.last = source.clock
        else:
            entry = _Entry(identity, message, source.clock, source.clock)
            self.entries.append(entry)
            self.counted["impressions"] += 1
            if not self.delay_ms:
                self._make_of(entry)
        for click in self.waiting:
            if click.identity != identity or click.over:
                continue
            click.over = click.clock <= source.clock + window_ms
            click.too_late = not click.over
            if click.over:
                self._meet(entry, click)
        if not entry.made and self.watermark_ms > entry.clock + self.delay_ms:
            self._make_of(entry)

    def _take_clicked(self, message: _Message) -> None:
        source = self.sources[EventSide.CLICKS]
        assert isinstance(message.event, dict)
        self._reach(message)
        source.clock = max(source.clock, message.time_ms)
        self._give_up_clicks()
        if is_tick(message.event):
            self.counted["ticks"] += 1
            return
        self.counted["clicks"] += 1
        click = _Click(message.event[IMPRESSION_ID], message, source.clock)
        entry = self._living(click.identity)
        if entry is not None and click.clock <= entry.last + self.window_ms:
            self._meet(entry, click)
        elif self._waits(click):
            click.too_late = entry is not None
            self.waiting.append(click)
        elif entry is not None:
            self.counted["late_clicks"] += 1
        else:
            self.counted["unmatched_clicks"] += 1

    def _living(self, identity: object) -> _Entry | None:
        now_ms = self.sources[EventSide.IMPRESSIONS].clock
        for entry in self.entries:
            if entry.identity == identity and now_ms <= entry.last + 2 * self.window_ms:
                return entry
        return None

    def _open(self, entry: _Entry) -> bool:
        return self.watermark_ms <= entry.clock + self.window_ms

    def _waits(self, click: _Click) -> bool:
        shown_ms = self.sources[EventSide.IMPRESSIONS].clock
        return (
            shown_ms <= click.clock + self.window_ms
            and self.watermark_ms <= click.clock + 2 * self.window_ms
        )

    def _give_up_clicks(self) -> None:
        for click in self.waiting:
            if not click.over and not self._waits(click):
                click.over = True
                self.counted["late_clicks" if click.too_late else "unmatched_clicks"] += 1

    def _meet(self, entry: _Entry, click: _Click) -> None:
        apart_ms = abs(click.message.time_ms - entry.message.time_ms)
        in_range = click.clock >= entry.clock - self.window_ms and apart_ms <= self.window_ms
        if not self._open(entry) or not in_range:
            self.counted["late_clicks"] += 1
        elif entry.clicked:
            self.counted["duplicate_clicks"] += 1
        else:
            entry.clicked = True
            if entry.made:
                clicked, shown = click.message.record, entry.message.record
                made_ms = click.message.time_ms
                self._make(Made("clicked", 1, made_ms, clicked.append_ms, shown))
