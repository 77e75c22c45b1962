"""The progress bar of a replay, or a line now and then where there is no terminal.

A log replayed from a thread of its own, so that whoever started it can watch.

Sending takes about a third of a core at full speed and most of that outside the interpreter's lock,
so it needs no process of its own, and a run that is stopped stops it with an event.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from headrace.ingest.joiner import StateReader
from headrace.ingest.replay import ReplayProgress, ReplayResult, ReplaySettings, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from rich.console import Console

    from headrace.ingest.kafka import KafkaSettings
    from headrace.ingest.replay import Before, LogLayout
    from headrace.learner.spec import ModelSpec


class BackgroundReplay(threading.Thread):
    """Replays logs one after another. What goes wrong is kept in `failure`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        spec: ModelSpec,
        paths: Sequence[Path],
        speed: float | None,
        *,
        layout: LogLayout | None = None,
        resume_as: str | None = None,
        before: Before | None = None,
    ) -> None:
        """`layout`, `resume_as` and `before` as in `ingest.replay.replayer`."""
        super().__init__(name="replay", daemon=True)
        self._kafka, self._spec, self._paths = kafka, spec, paths
        self._layout, self._before = layout, before
        self._settings = ReplaySettings(speed=speed, resume_as=resume_as)
        self._stop_it = threading.Event()
        self.began_s = time.monotonic()
        """On the monotonic clock: before the first event was read."""
        self.progress = ReplayProgress(0, 0, 0, 0)
        self.replayed = ReplayResult()
        self.failure: BaseException | None = None

    @property
    def sent(self) -> int:
        """Events sent."""
        return self.progress.events

    def stop_showing(self) -> None:
        """Send no more; the thread ends within a moment."""
        self._stop_it.set()

    abandon = stop_showing

    def run(self) -> None:
        """Replay until the end or until stopped."""
        try:
            state = StateReader(self._kafka, self._spec)
            self.began_s = time.monotonic()
            self.replayed = replay(
                self._kafka,
                self._paths,
                self._spec.fields.label.window_ms,
                self._stop_it,
                layout=self._layout,
                settings=self._settings,
                lag=lambda: state.read().lag,
                progress=self._note,
                before=self._before,
            )
        except BaseException as error:  # noqa: BLE001  (handed to the thread that looks at it)
            self.failure = error

    def _note(self, progress: ReplayProgress) -> None:
        self.progress = progress


LOOK_S = 0.05
LINE_EVERY_S = 5.0


def watch_replay(
    replaying: BackgroundReplay,
    console: Console,
    stop: threading.Event,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Start the replay and show it until its end; return whether it came to its end.

    `check` is called all the while; what it raises stops the replay. Raises what the replay raised.
    """
    said_s = time.monotonic()
    with _bar(console) as bar:
        task = bar.add_task("replaying", events=0, rate=0.0, at="")
        replaying.start()
        try:
            while replaying.is_alive() and not stop.is_set():
                check()
                replaying.join(LOOK_S)
                said = _line(replaying)
                now = replaying.progress
                bar.update(
                    task,
                    completed=now.bytes_read,
                    total=now.bytes_total or None,
                    events=said.events,
                    rate=said.events_s,
                    at=said.at,
                )
                if not console.is_terminal and time.monotonic() - said_s >= LINE_EVERY_S:
                    said_s = time.monotonic()
                    console.print(
                        f"replayed {said.events:,} events up to {said.at}, {said.events_s:,.0f}/s",
                        highlight=False,
                    )
        finally:
            replaying.stop_showing()
            replaying.join()
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


class _Said(NamedTuple):
    events: int
    events_s: float
    at: str


def _line(replaying: BackgroundReplay) -> _Said:
    now = replaying.progress
    passed_s = time.monotonic() - replaying.began_s
    at = datetime.fromtimestamp(now.event_ms / 1000, UTC) if now.event_ms else None
    return _Said(
        now.events,
        now.events / passed_s if passed_s > 0 else 0.0,
        f"{at:%Y-%m-%d %H:%M}" if at else "the beginning",
    )
