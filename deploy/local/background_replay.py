"""Replays logs in a background thread, and shows the progress.

The progress is a bar on a terminal and a line every few seconds elsewhere. A thread is enough:
sending at full speed takes a third of a core, most of it without the interpreter lock, and an event
stops the replay together with its run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from headrace.ingest.errors import KafkaUnreachable, TransactionAborted
from headrace.ingest.joiner.committed_state import StateReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.logs.layout import LogLayout
from headrace.ingest.logs.ndjson import EventLog
from headrace.ingest.logs.opening import open_log
from headrace.ingest.replay.live_log import LiveLog, LivePace
from headrace.ingest.replay.replayer import (
    Before,
    ReplayHooks,
    ReplayProgress,
    ReplayResult,
    ReplaySettings,
    replay,
)
from headrace.learner.spec.model_spec import ModelSpec
from headrace.runtime.counted_nouns import counted


class BackgroundReplay(threading.Thread):
    """Replays logs in order. `failure` keeps the error that ended the replay."""

    def __init__(
        self,
        kafka: KafkaSettings,
        spec: ModelSpec,
        paths: Sequence[Path],
        speed: float | LivePace | None,
        *,
        layout: LogLayout | None = None,
        resume_as: str | None = None,
        before: Before | None = None,
        sort: bool = False,
    ) -> None:
        """`layout` and `sort` open the logs; `before` is that of `ReplayHooks`.

        speed: multiple of real time; None: full speed; `LivePace`: events happen now.
        """
        super().__init__(name="replay", daemon=True)
        self._kafka, self._spec, self._paths = kafka, spec, paths
        self._layout, self._before, self._sort = layout, before, sort
        self._live = speed if isinstance(speed, LivePace) else None
        pace = 1.0 if isinstance(speed, LivePace) else speed
        self._settings = ReplaySettings(speed=pace, resume_as=resume_as)
        self._stop_it = threading.Event()
        self.began_s = time.monotonic()
        """Monotonic time just before the first event was read."""
        self.progress = ReplayProgress(0, 0, 0, 0)
        self._most_events, self._moved_s = 0, self.began_s
        self.replayed = ReplayResult()
        self.failure: BaseException | None = None

    def abandon(self) -> None:
        """Stop sending. The thread ends within a moment, or once a call to Kafka has failed."""
        self._stop_it.set()

    def run(self) -> None:
        """Replay until the end or until stopped."""
        try:
            state = StateReader(self._kafka, self._spec)
            self.began_s = time.monotonic()
            before: int | None = None  # lines of earlier runs; a later attempt adds those of this
            while not self._replayed(state):
                if before is None:
                    before = self.progress.resumed
                self._stop_it.wait(_RETRY_S)
            if before is not None:
                self.replayed.resumed = before
        except BaseException as error:  # noqa: BLE001  (raised by `watch_replay`)
            self.failure = error

    def _replayed(self, state: StateReader) -> bool:
        """Replay; return False if Kafka failed in between, and a replay can continue.

        Raises the error of Kafka if the replay has no name, had sent nothing, or makes no progress.
        """
        try:
            self.replayed = replay(
                self._kafka,
                [self._opened(path) for path in self._paths],
                self._spec.fields.label.window_ms,
                self._stop_it,
                settings=self._settings,
                hooks=ReplayHooks(lambda: state.read().lag, self._note, self._before),
            )
        except (KafkaUnreachable, TransactionAborted):
            can_resume = self._settings.resume_as is not None and self._live is None
            outage_s = time.monotonic() - self._moved_s
            if not can_resume or not self._most_events or outage_s > _OUTAGE_S:
                raise
            if self._stop_it.is_set():
                self.replayed = ReplayResult(stopped=True)
                return True
            return False
        return True

    def _opened(self, path: Path) -> EventLog:
        log = open_log(path, self._layout, sort=self._sort)
        if self._live is None:
            return log
        last = path == self._paths[-1]
        return LiveLog(log, self._live if last else self._live._replace(repeat=False))

    def _note(self, progress: ReplayProgress) -> None:
        if progress.events > self._most_events:
            self._most_events, self._moved_s = progress.events, time.monotonic()
        self.progress = progress


LOOK_S = 0.05
LINE_EVERY_S = 5.0
_OUTAGE_S = 60.0
"""A replay with a name continues after a shorter outage of Kafka, as the parts do."""
_RETRY_S = 1.0
_ENDED_WITHIN_S = 5.0
"""A replay that was stopped takes a moment, or twice as long as this if Kafka does not answer. The
next replay sends again what its transaction has."""


def watch_replay(
    replaying: BackgroundReplay,
    console: Console,
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Start the replay and show its progress; return whether it replayed everything.

    `check` is called repeatedly, and an exception of it stops the replay. Raises the error of the
    replay.
    """
    shown_s = time.monotonic()
    with _bar(console) as bar:
        task = bar.add_task("replaying", events=0, rate=0.0, at="")
        replaying.start()
        try:
            while replaying.is_alive() and not stop.is_set():
                check()
                replaying.join(LOOK_S)
                now, now_s = replaying.progress, time.monotonic()
                rate = now.events / max(now_s - replaying.began_s, 1e-9)
                read, total, at = now.bytes_read, now.bytes_total or None, _moment(now.event_ms)
                bar.update(task, completed=read, total=total, events=now.events, rate=rate, at=at)
                if not console.is_terminal and now_s - shown_s >= LINE_EVERY_S:
                    shown_s = now_s
                    line = f"replayed {counted(now.events, 'event')} up to {at}, {rate:,.0f}/s"
                    console.print(line, highlight=False)
        finally:
            replaying.abandon()
            replaying.join(_ENDED_WITHIN_S)
    if replaying.is_alive():
        return False
    if replaying.failure is not None:
        raise replaying.failure
    return not replaying.replayed.stopped


def _bar(console: Console) -> ProgressBar:
    return ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[events]:,} events, {task.fields[rate]:,.0f}/s, {task.fields[at]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _moment(event_ms: int) -> str:
    if not event_ms:
        return "the beginning"
    return f"{datetime.fromtimestamp(event_ms / 1000, UTC):%Y-%m-%d %H:%M}"
