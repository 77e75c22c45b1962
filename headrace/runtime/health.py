"""Decides whether a process is live and ready, for the probes of an orchestrator.

Live means progress. A process is not live if its loop has not finished a step for `stalled_after_s`
seconds, which is a call that hangs. It is not live either if its work did not advance for as long
although there is a backlog, which is a client that delivers nothing. An outage of Kafka is neither:
loops go on in it, and a process that waited too long ends by itself with status 75. A restart would
not bring a broker back.

Ready means that the process does its work: for a joiner that it has its partitions, for a server
that its rows are complete. Steps begin at the start of the loop, so a long start is not a hang.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

STALLED_AFTER_S = 120.0
"""Longer than any wait of a loop: processes give up an unreachable Kafka after 60 s."""


@dataclass(slots=True)
class _Watched:
    """One kind of work, and since when it has not advanced."""

    done: Callable[[], object]
    behind: Callable[[], bool]
    last: object
    advanced_s: float


class ProcessHealth:
    """The state of one process. The loop calls `stepped`, the thread of the probes the others."""

    def __init__(
        self,
        stalled_after_s: float = STALLED_AFTER_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stalled_after_s, self._now_s = stalled_after_s, now_s
        self._stepped_s: float | None = None
        self._ready: Callable[[], bool] = lambda: True
        self._watches: list[_Watched] = []

    def stepped(self) -> None:
        """Note that the loop finished a step."""
        self._stepped_s = self._now_s()

    def ready_when(self, ready: Callable[[], bool]) -> None:
        """Ask this, too, whether the process is ready. The first step must have ended anyway."""
        self._ready = ready

    def watch(self, done: Callable[[], object], behind: Callable[[], bool]) -> None:
        """Expect `done` to change while `behind` returns True. There may be several watches.

        done: any value that differs after progress. behind: whether there is a backlog; asked only
        after `done` has been the same for too long, because it may be a request to a server.
        """
        self._watches.append(_Watched(done, behind, done(), self._now_s()))

    def why_not_live(self) -> str:
        """Return the reason why the process should be restarted; empty if it should not."""
        now_s, stepped_s = self._now_s(), self._stepped_s
        if stepped_s is None:
            return ""
        if now_s - stepped_s > self._stalled_after_s:
            return f"no step of the loop ended for {now_s - stepped_s:.0f} s"
        # every watch is asked each time: one that was not would miss when its work went on
        stalled_s = max((self._stalled_s(each, now_s) for each in self._watches), default=0.0)
        if not stalled_s:
            return ""
        return f"no progress for {stalled_s:.0f} s, although there is a backlog"

    def _stalled_s(self, watched: _Watched, now_s: float) -> float:
        """Return since when the work has not advanced; 0 if it may go on like this."""
        done = watched.done()
        if done != watched.last:
            watched.last, watched.advanced_s = done, now_s
        stalled_s = now_s - watched.advanced_s
        if stalled_s <= self._stalled_after_s:
            return 0.0
        if not watched.behind():
            watched.advanced_s = now_s
            return 0.0
        return stalled_s

    def why_not_ready(self) -> str:
        """Return the reason why the process should get no work; empty if it may."""
        if self._stepped_s is None:
            return "starting"
        return "" if self._ready() else "not ready"
