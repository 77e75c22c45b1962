"""Plays the synthetic stream in real time, no faster than the machine can learn it.

Requests are due by the clock, and a tick catches up with what the one before missed. When the
learner is behind by more than a second or two of events, the rate is halved. It rises again once
the learner has caught up. A demo on a busy laptop thus shows less traffic, not stale predictions.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.deploy.demo.synthetic import SyntheticEvents, SyntheticStream
from headrace.runtime.clock import wall_ms

TICK_S = 0.02
"""Events of this time are sent together: short beside the time until they are learned."""


@dataclass(slots=True)
class Throttle:
    """Adapts the rate to the machine: halves it when the learner is behind, then raises it "
    "again."""

    events_s: float
    """Target rate, in impressions per second."""
    least_s: float = 100.0
    behind_limit_s: float = 1.5
    """Unscored events, in seconds of the stream, above which the rate is halved."""
    patience_s: float = 2.0
    """Time between two halvings, so that the first takes effect."""
    recovery_s: float = 1.0
    """Time between two steps up of a quarter each: from the least to 2,000 in 15 s."""
    rate_s: float = 0.0
    """Current rate, in impressions per second."""
    _changed_at_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.rate_s = self.events_s

    def adapt(self, now_s: float, behind: int) -> float:
        """Return the new rate for this number of unscored impressions."""
        if behind > self.behind_limit_s * self.rate_s:
            if now_s - self._changed_at_s >= self.patience_s:
                self.rate_s = max(self.least_s, self.rate_s / 2)
                self._changed_at_s = now_s
        elif now_s - self._changed_at_s >= self.recovery_s and self.rate_s < self.events_s:
            self.rate_s = min(self.events_s, self.rate_s * 1.25)
            self._changed_at_s = now_s
        return self.rate_s


class LiveStream(threading.Thread):
    """Sends the stream in a thread until `stop_showing`, and then the clicks that are still due.

    `send` hands events to Kafka, and `unscored` returns the number of sent impressions without a
    score. An error of `send` ends the thread and is kept in `failure`.
    """

    def __init__(
        self,
        stream: SyntheticStream,
        throttle: Throttle,
        send: Callable[[SyntheticEvents], None],
        unscored: Callable[[], int],
    ) -> None:
        super().__init__(name="synthetic stream", daemon=True)
        self._stream, self._throttle = stream, throttle
        self._send, self._unscored = send, unscored
        self._no_more = threading.Event()
        self._abandoned = threading.Event()
        self.failure: BaseException | None = None
        self._owed = 0.0  # requests that are due and not shown yet
        self.impressions = 0
        self.clicks = 0

    @property
    def sent(self) -> int:
        """Events sent."""
        return self.impressions + self.clicks

    def stop_showing(self) -> None:
        """Send no more impressions. The thread ends with the last click."""
        self._no_more.set()

    def abandon(self) -> None:
        """End the thread at once."""
        self._abandoned.set()
        self._no_more.set()

    def run(self) -> None:
        """Send until stopped, and then until no click is pending."""
        try:
            # an experiment is prepared in between: no events have the times of this wait
            self._stream.postpone(wall_ms())
            while not self._abandoned.is_set():
                showing = not self._no_more.is_set()
                if not showing and not self._stream.pending:
                    return
                self._step(showing)
                # not `_no_more`: clicks that are still due need the clock too
                self._abandoned.wait(TICK_S)
        except BaseException as error:  # noqa: BLE001  (raised by the main thread)
            self.failure = error

    def _step(self, showing: bool) -> None:
        now_ms = wall_ms()
        passed_s = max(0, now_ms - self._stream.now_ms) / 1000.0
        rate_s = self._throttle.adapt(time.monotonic(), self._unscored())
        slate = self._stream.world.slate
        # after a pause of the machine (a sleeping laptop), do not send everything at once
        self._owed = min(self._owed + passed_s * rate_s / slate, rate_s) if showing else 0.0
        requests = int(self._owed)
        self._owed -= requests
        happened = self._stream.step(max(now_ms, self._stream.now_ms), requests)
        self._send(happened)
        self.impressions += len(happened.impressions)
        self.clicks += len(happened.clicks)
