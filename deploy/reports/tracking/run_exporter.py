"""Exports runs to another tracker in the background; an outage of it stops nothing.

The record of a run is ours (`run_registry.py`, Kafka). A tracker gets a copy, so it may lose parts:
updates wait in a queue with a bound, and when the queue is full, the oldest one is dropped and
counted. An outage is one log line when it begins and one when it ends, with the number of dropped
updates. `headrace runs RUN --track` sends a whole run again at any time.

`export` takes the run as it is now and finds what was not sent yet, so callers keep no account.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from headrace.deploy.reports.tracking.tracked_run import RunPoint, RunState, TrackedRun
from headrace.runtime.counted_nouns import counted

log = logging.getLogger(__name__)

_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0
PATIENCE_S = 10.0
"""Time at the end of a command for what is still in the queue."""


class TargetUnavailable(Exception):
    """The tracker cannot be reached, or it asks to retry later."""


class UpdateRefused(Exception):
    """The tracker refuses this update. A retry would not help."""


class RunUpdate(NamedTuple):
    """A change of a run that a tracker has not got."""

    run: TrackedRun
    """Without points and arms."""
    parent: TrackedRun | None
    """The experiment of an arm, without points and arms."""
    points: tuple[RunPoint, ...]
    """The new ones."""
    first_ms: int
    """Event time of the first point of the run."""
    files: tuple[Path, ...]
    """Report and page, when the run has ended."""


class ExportTarget(Protocol):
    """A tracker."""

    name: str
    """Shown in log lines. Contains no password."""

    def apply(self, update: RunUpdate) -> None:
        """Send an update; it may have been sent before.

        Raises TargetUnavailable, UpdateRefused.
        """


class RunExporter:
    """A queue of updates, and the thread that sends them."""

    def __init__(
        self, target: ExportTarget, most: int = 1000, first_retry_s: float = _FIRST_RETRY_S
    ) -> None:
        """most: updates that wait at the same time."""
        self._target, self._most, self._first_retry_s = target, most, first_retry_s
        self._queue: deque[RunUpdate] = deque()
        self._sent: dict[str, tuple[TrackedRun, int]] = {}
        """Header and number of points of each run that `export` got."""
        self._changed = threading.Condition()
        self._closed = False
        self._working = False
        self._unreachable = False
        self.dropped = 0
        """Updates that did not fit in the queue, or were left when it was closed."""
        self.refused = 0
        self._thread = threading.Thread(target=self._work, name="export", daemon=True)
        self._thread.start()

    def export(self, run: TrackedRun, files: Sequence[Path] = ()) -> None:
        """Put what is new in a run and its arms into the queue. Never waits for the tracker."""
        header = _header(run)
        with self._changed:
            self._offer(run, None, tuple(files))
            for arm in run.arms:
                self._offer(arm, header, ())
            self._changed.notify_all()

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Send what is left within `patience_s`; count the rest as dropped."""
        deadline_s = time.monotonic() + patience_s
        with self._changed:
            while (self._queue or self._working) and self._thread.is_alive():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0.0:
                    break
                self._changed.wait(left_s)
            self._closed = True
            self.dropped += len(self._queue) + self._working
            self._queue.clear()
            self._changed.notify_all()
        if self.dropped:
            log.warning(
                "%s did not get %s of runs: `headrace runs RUN --track` sends a run again",
                self._target.name,
                counted(self.dropped, "update"),
            )

    def _offer(self, run: TrackedRun, parent: TrackedRun | None, files: tuple[Path, ...]) -> None:
        header = _header(run)
        before, count = self._sent.get(run.id, (None, 0))
        points = run.points[count:]
        if before == header and not points and not files:
            return
        self._sent[run.id] = header, len(run.points)
        if len(self._queue) >= self._most:
            self._queue.popleft()
            self.dropped += 1
        first_ms = run.points[0].event_ms if run.points else 0
        self._queue.append(RunUpdate(header, parent, points, first_ms, files))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                update = self._queue.popleft()
                self._working = True
            self._send(update)
            with self._changed:
                self._working = False
                self._changed.notify_all()

    def _send(self, update: RunUpdate) -> None:
        wait_s = self._first_retry_s
        while not self._closed:
            try:
                self._target.apply(update)
            except TargetUnavailable as error:
                self._begin_outage(error)
                with self._changed:
                    if not self._closed:
                        self._changed.wait_for(lambda: self._closed, wait_s)
                wait_s = min(2 * wait_s, _LAST_RETRY_S)
            except UpdateRefused as error:
                self.refused += 1
                log.warning("%s refused an update of %s: %s", self._target.name, update.run.id,
                            error)  # fmt: skip
                return
            else:
                self._end_outage()
                return

    def _begin_outage(self, error: TargetUnavailable) -> None:
        if not self._unreachable:
            self._unreachable = True
            log.warning(
                "%s cannot be reached: up to %d updates of runs wait, the run goes on: %s",
                self._target.name,
                self._most,
                error,
            )

    def _end_outage(self) -> None:
        if self._unreachable:
            self._unreachable = False
            log.warning(
                "%s can be reached again; updates dropped so far: %d",
                self._target.name,
                self.dropped,
            )


def ended(run: TrackedRun) -> bool:
    """Whether a run is over."""
    return run.state is not RunState.UNFINISHED


def _header(run: TrackedRun) -> TrackedRun:
    return msgspec.structs.replace(run, points=(), arms=())
