"""Plays the synthetic stream in real time, no faster than the machine can learn it.

Requests are due by the clock; what a tick missed, the next one makes up. When the learner has
fallen behind by more than a second or two of events, the rate is halved, and creeps up again once
it has caught up: a demo on a busy laptop shows less traffic rather than stale predictions.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ingest.runtime import wall_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.deploy.demo.synthetic import SyntheticEvents, SyntheticStream

TICK_S = 0.02
"""Events of this long are sent together: little beside the milliseconds they take to be learned."""


@dataclass(slots=True)
class Throttle:
    """Finds the rate that the machine follows: halves it when behind, then creeps up again."""

    events_s: float
    """Impressions a second wanted."""
    least_s: float = 100.0
    behind_limit_s: float = 1.5
    """So many seconds of events may be unscored: batching and a push take a tenth of it."""
    patience_s: float = 2.0
    """Between two halvings: the time in which the first shows."""
    recovery_s: float = 1.0
    """Between two steps up, of a quarter each: from the least to 2,000 in a quarter of a minute."""
    rate_s: float = 0.0
    """Impressions a second now."""
    _changed_at_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.rate_s = self.events_s

    def adapt(self, now_s: float, behind: int) -> float:
        """Return the rate, given how many impressions are not yet scored."""
        if behind > self.behind_limit_s * self.rate_s:
            if now_s - self._changed_at_s >= self.patience_s:
                self.rate_s = max(self.least_s, self.rate_s / 2)
                self._changed_at_s = now_s
        elif now_s - self._changed_at_s >= self.recovery_s and self.rate_s < self.events_s:
            self.rate_s = min(self.events_s, self.rate_s * 1.25)
            self._changed_at_s = now_s
        return self.rate_s


class LiveStream(threading.Thread):
    """Sends the stream from a thread of its own until `stop_showing`, then what clicks are due.

    `send` takes what happened and hands it to Kafka; `unscored` tells how many impressions sent
    are not yet scored. What `send` raises ends the thread and is kept in `failure`.
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
        self._owed = 0.0  # requests due and not yet shown
        self.impressions = 0
        self.clicks = 0

    @property
    def rate_s(self) -> float:
        """Impressions a second that are being sent."""
        return self._throttle.rate_s

    @property
    def sent(self) -> int:
        """Events sent."""
        return self.impressions + self.clicks

    def stop_showing(self) -> None:
        """Show no more; the thread ends when the last click has been sent."""
        self._no_more.set()

    def abandon(self) -> None:
        """End the thread at once."""
        self._abandoned.set()
        self._no_more.set()

    def run(self) -> None:
        """Send until told to stop, and then until no click is pending."""
        try:
            while not self._abandoned.is_set():
                showing = not self._no_more.is_set()
                if not showing and not self._stream.pending:
                    return
                self._step(showing)
                # not the event that ends the show: clicks are due by the clock as well
                self._abandoned.wait(TICK_S)
        except BaseException as error:  # noqa: BLE001  (handed to the thread that looks at it)
            self.failure = error

    def _step(self, showing: bool) -> None:
        now_ms = wall_ms()
        passed_s = max(0, now_ms - self._stream.now_ms) / 1000.0
        rate_s = self._throttle.adapt(time.monotonic(), self._unscored())
        slate = self._stream.world.slate
        # after a pause of the whole machine (a laptop asleep), do not make it all up at once
        self._owed = min(self._owed + passed_s * rate_s / slate, rate_s) if showing else 0.0
        requests = int(self._owed)
        self._owed -= requests
        happened = self._stream.step(max(now_ms, self._stream.now_ms), requests)
        self._send(happened)
        self.impressions += len(happened.impressions)
        self.clicks += len(happened.clicks)
