"""A log replayed from a thread of its own, so that whoever started it can watch.

Sending takes about a third of a core at full speed and most of that outside the interpreter's lock,
so it needs no process of its own, and a run that is stopped stops it with an event.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ingest.joiner import StateReader
from ingest.replay import Progress, Replayed, ReplaySettings, replay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ingest.layout import Layout
    from ingest.replay import Before
    from ingest.settings import KafkaSettings
    from learner.spec import ModelSpec


class LogReplay(threading.Thread):
    """Replays logs one after another. What goes wrong is kept in `failure`."""

    def __init__(
        self,
        kafka: KafkaSettings,
        spec: ModelSpec,
        paths: Sequence[Path],
        speed: float | None,
        *,
        layout: Layout | None = None,
        resume_as: str | None = None,
        before: Before | None = None,
    ) -> None:
        """`layout`, `resume_as` and `before` as in `ingest.replay`."""
        super().__init__(name="replay", daemon=True)
        self._kafka, self._spec, self._paths = kafka, spec, paths
        self._layout, self._before = layout, before
        self._settings = ReplaySettings(speed=speed, resume_as=resume_as)
        self._stop_it = threading.Event()
        self.began_s = time.monotonic()
        """On the monotonic clock: before the first event was read."""
        self.progress = Progress(0, 0, 0, 0)
        self.replayed = Replayed()
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

    def _note(self, progress: Progress) -> None:
        self.progress = progress
