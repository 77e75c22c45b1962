"""Replays logs of events into Kafka, at their original pace or as fast as the pipeline follows.

`ingest.logs` reads them: directories of NDJSON, and tables with a layout. Several logs are replayed
one after another.

Events of one request go to one partition (`ingest.replay.request_keys`).

Events keep their original times. Ticks give these times a meaning at any speed: events with only a
time, sent to every partition at intervals, so that event time advances in idle partitions too.
After the last event a tick past the label window closes every window.

A replay with a name can be killed and restarted. It writes the number of lines sent in the
transactions that hold them (`ingest.replay.outputs`), so each line is in Kafka once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from headrace.ingest.events.contract import AHEAD_MS
from headrace.ingest.kafka.producer import BY_KEY
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import EventTopics, check_co_partitioned
from headrace.ingest.replay.outputs import EventWriter, PlainEventWriter, ResumableEventWriter
from headrace.ingest.replay.request_keys import RequestKeys
from headrace.runtime.clock import wall_ms

if TYPE_CHECKING:
    from headrace.ingest.logs.ndjson import EventLog, Line

Before: TypeAlias = "Callable[[Sequence[Line], float], None]"


_LINES_A_CHECK = 2_000
"""Between two checks of progress, lag, ticks and the stop: some 10 ms at full speed."""
_LINES_SHOWN = 250
"""Most lines passed to `before` at a time: they wait together while it runs."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Speed and intervals of a replay."""

    speed: float | None = None
    """Multiple of real time; None: as fast as the pipeline follows."""
    lag_limit: int = 200_000
    """Events that may wait to be joined before the replay waits: some seconds of work."""
    tick_interval_s: float = 0.5
    """Wall time between ticks of a paced replay: how long an idle partition holds up the others."""
    linger_ms: int = 2
    """Time that a message may wait for others to share a request."""
    resume_as: str | None = None
    """Name under which a killed replay continues; None: a restart begins from the start."""
    commit_interval_s: float = 0.25
    """Between transactions of a replay with a name: how long its events stay invisible."""


@dataclass(slots=True)
class LogReplayed:
    """Totals of one log."""

    path: Path
    impressions: int = 0
    """Lines, including malformed ones."""
    clicks: int = 0
    first_ms: int = 0
    """Event time of its first event."""
    last_ms: int = 0


@dataclass(slots=True)
class ReplayResult:
    """Totals of a replay."""

    logs: list[LogReplayed] = field(default_factory=list)
    stopped: bool = False
    """Whether it was stopped before the end; then no last tick closed the windows."""

    resumed: int = 0
    """Lines of the logs that were sent before this run."""

    @property
    def events(self) -> int:
        """Lines sent, by this run and by those that it resumed."""
        return sum(log.impressions + log.clicks for log in self.logs)


class ReplayProgress(NamedTuple):
    """The progress of a replay."""

    events: int
    event_ms: int
    """Event time reached."""
    bytes_read: int
    """Of the files on disk."""
    bytes_total: int
    resumed: int = 0
    """The part of `events` that was sent before this run."""


@dataclass(frozen=True, slots=True)
class ReplayHooks:
    """Functions that a replay calls between its events."""

    lag: Callable[[], int] = lambda: 0
    """Returns how many events wait to be joined. A replay at full speed keeps it within the limit
    of its settings."""
    progress: Callable[[ReplayProgress], None] = lambda _: None
    before: Before | None = None
    """Gets the lines about to be sent, all lines of one time together, and how many seconds late
    they are."""


def replay(
    kafka: KafkaSettings,
    logs: Sequence[EventLog],
    window_ms: int,
    stop: threading.Event,
    *,
    settings: ReplaySettings | None = None,
    topics: EventTopics | None = None,
    hooks: ReplayHooks | None = None,
) -> ReplayResult:
    """Send the events of each log, one after another, then ticks past `window_ms`.

    logs: see `open_log`. Returns early when `stop` is set.
    Raises SpecError, MissingTopic, TopicMismatch, KafkaUnreachable, WriteRefused; a replay with a
    name also BadCheckpoint, if the name belongs to other files, OffsetGone, if Kafka lost lines of
    it, and TransactionAborted, after which a restart continues.
    """
    settings, topics = settings or ReplaySettings(), topics or EventTopics()
    partitions = check_co_partitioned(kafka, [topics.impressions, topics.clicks])
    writer: EventWriter
    if settings.resume_as is None:
        writer = PlainEventWriter(kafka, settings.linger_ms)
    else:
        what = [f"{log.path.name}:{log.bytes_total}" for log in logs]
        both = topics.impressions, topics.clicks
        sources = [Source(topic, number) for topic in both for number in range(partitions)]
        writer = ResumableEventWriter(kafka, settings.resume_as, sources, what, stop)
    keys = RequestKeys(window_ms)
    hooks = hooks or ReplayHooks()
    run = _ReplayRun(logs, writer, keys, settings, topics, partitions, stop, hooks)
    try:
        if not run.send_logs():
            run.replayed.stopped = True
            if settings.resume_as is None:
                run.tick(run.event_ms)  # partitions must not wait for events that will not come
        elif not writer.complete:
            if run.event_ms:
                run.tick(run.event_ms + window_ms + 1)
            writer.commit(run.taken, complete=True)
    finally:
        writer.close()
    run.report()
    return run.replayed


class _ReplayRun:
    """One run of a replay."""

    def __init__(
        self,
        logs: Sequence[EventLog],
        writer: EventWriter,
        keys: RequestKeys,
        settings: ReplaySettings,
        topics: EventTopics,
        partitions: int,
        stop: threading.Event,
        hooks: ReplayHooks,
    ) -> None:
        self._logs, self._writer, self._keys = logs, writer, keys
        self._settings, self._topics = settings, topics
        self._partitions, self._stop = partitions, stop
        self._lag, self._progress, self._before = hooks.lag, hooks.progress, hooks.before
        self._targets = Source(topics.impressions, BY_KEY), Source(topics.clicks, BY_KEY)
        self._ticked_s = self._committed_s = time.monotonic()
        self.event_ms = 0
        self.taken = 0
        """Lines of all logs so far, including those sent by an earlier run."""
        self.replayed = ReplayResult()

    def send_logs(self) -> bool:
        """Send the events of all logs; return False if stopped before their end."""
        for log in self._logs:
            totals = LogReplayed(log.path)
            self.replayed.logs.append(totals)
            lines = log.lines()
            if not self._skip(lines, totals):
                return False
            if self._settings.speed is None:
                self._send_all(lines, totals)
            else:
                self._send_paced(lines, totals, self._settings.speed)
            if self._stop.is_set():
                self._commit()
                return False
        return True

    def _skip(self, lines: Iterator[Line], totals: LogReplayed) -> bool:
        """Skip the lines sent by an earlier run; return False if stopped."""
        while (left := self._writer.resumed_at - self.taken) > 0:
            before = self.taken
            for line in islice(lines, min(left, _LINES_A_CHECK)):
                self._note(line, totals)
                self.replayed.resumed += 1
            self.report()
            if self._stop.is_set():
                return False
            if self.taken == before:
                break  # the rest is in the next logs
        return True

    def tick(self, time_ms: int) -> None:
        """Advance every partition of both topics to this time, at most a day from now.

        A later tick would be a dead letter.
        """
        if time_ms <= 0:
            return  # no line had a time yet
        time_ms = min(time_ms, wall_ms() + AHEAD_MS)
        value = msgspec.json.encode({"timestamp_ms": time_ms})
        for target in self._targets:
            for partition in range(self._partitions):
                self._writer.send(Source(target.topic, partition), value, None)
        self._ticked_s = time.monotonic()

    def report(self) -> None:
        """Report the progress."""
        read = sum(log.bytes_read() for log in self._logs)
        total = sum(log.bytes_total for log in self._logs)
        replayed = self.replayed
        self._progress(
            ReplayProgress(replayed.events, self.event_ms, read, total, replayed.resumed)
        )

    def _commit(self) -> None:
        self._writer.commit(self.taken)
        self._committed_s = time.monotonic()

    def _send_all(self, lines: Iterator[Line], totals: LogReplayed) -> None:
        most = _LINES_A_CHECK if self._before is None else _LINES_SHOWN
        for group in _of_whole_times(lines, most):
            self._send_together(group, totals, 0.0)
            self.tick(self.event_ms)
            if time.monotonic() - self._committed_s > self._settings.commit_interval_s:
                self._commit()
            self.report()
            self._let_follow()
            if self._stop.is_set():
                return

    def _let_follow(self) -> None:
        """Wait while more events than the limit wait to be joined."""
        while self._lag() > self._settings.lag_limit and not self._stop.wait(0.02):
            self.report()

    def _send_paced(self, lines: Iterator[Line], totals: LogReplayed, speed: float) -> None:
        begun_s, first_ms = time.monotonic(), None
        pause_s = min(self._settings.tick_interval_s, self._settings.commit_interval_s)
        most = 1 if self._before is None else _LINES_SHOWN
        group: list[Line] = []  # due and not yet sent
        group_due_s = begun_s
        for line in lines:
            if first_ms is None:
                first_ms = line.time_ms
            due_s = begun_s + (line.time_ms - first_ms) / 1000 / speed
            full = len(group) >= most and line.time_ms > group[-1].time_ms
            if group and (full or due_s > time.monotonic()):
                self._send_together(group, totals, time.monotonic() - group_due_s)
                self._pass_time(self.event_ms)  # even if there is no time to wait
                group = []
            while (wait_s := due_s - time.monotonic()) > 0:
                self._pass_time(line.time_ms - int(wait_s * 1000 * speed) - 1)
                if self._stop.wait(min(wait_s, pause_s)):
                    return
            if self._stop.is_set():
                return
            group_due_s = group_due_s if group else due_s
            group.append(line)
        self._send_together(group, totals, time.monotonic() - group_due_s)

    def _pass_time(self, reached_ms: int) -> None:
        """Tick and commit, if due; all events up to this time are sent."""
        now_s = time.monotonic()
        if now_s - self._ticked_s > self._settings.tick_interval_s:
            self.tick(reached_ms)
            self._commit()
            self.report()
        elif now_s - self._committed_s > self._settings.commit_interval_s:
            self._commit()

    def _send_together(self, lines: Sequence[Line], totals: LogReplayed, late_s: float) -> None:
        if self._before is not None:
            self._before(lines, max(0.0, late_s))
        for line in lines:
            self._send(line, totals)

    def _send(self, line: Line, totals: LogReplayed) -> None:
        key = self._note(line, totals)
        self._writer.send(self._targets[line.is_click], line.value, key)

    def _note(self, line: Line, totals: LogReplayed) -> bytes | None:
        """Count a line; return its key."""
        self.taken += 1
        if line.is_click:
            totals.clicks += 1
        else:
            totals.impressions += 1
        if line.time_ms:
            totals.first_ms = totals.first_ms or line.time_ms
            totals.last_ms = self.event_ms = line.time_ms
        return self._keys.key_of(line)


def _of_whole_times(lines: Iterable[Line], most: int) -> Iterator[list[Line]]:
    """Yield the lines in groups of `most`; larger if the lines of one time need it."""
    group: list[Line] = []
    for line in lines:
        if len(group) >= most and line.time_ms > group[-1].time_ms:
            yield group
            group = []
        group.append(line)
    if group:
        yield group
