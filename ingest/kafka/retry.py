"""Transactions that could not be committed, one after another, and when that is no hiccup any more.

Whoever reads, works and writes in transactions goes back to its last commit after an abort and does
the same again. That may go on for as long as Kafka takes to come back, but not for ever, and not as
fast as the machine can.

How long to ask again where Kafka is there but not ready: a leader moves, a topic was just made.

Only `KafkaUnreachable` is asked again: everything else stays as it is however long one waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set

from headrace.ingest.errors import KafkaUnreachable

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_FIRST_WAIT_S = 0.05


class AbortBackoff:
    """What to do about aborts since the last commit."""

    def __init__(
        self,
        give_up_s: float,
        now_ms: Callable[[], int],
        rest: Callable[[float], object],
        longest_wait_s: float,
    ) -> None:
        """rest: lets so many seconds pass, or fewer if there is an end to come to."""
        self._give_up_s, self._now_ms = give_up_s, now_ms
        self._rest_for, self._longest_wait_s = rest, longest_wait_s
        self._in_a_row = 0
        self._since_ms: int | None = None

    def over(self) -> None:
        """Something was committed."""
        self._in_a_row, self._since_ms = 0, None

    def bear(self, error: Exception) -> None:
        """Note an abort. Raises `error` if nothing was committed for too long."""
        now_ms = self._now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms > self._give_up_s * 1000:
            raise error

    def rest(self) -> None:
        """Wait before going on: not at all after the first, then twice as long each time."""
        if self._in_a_row:
            wait_s = _FIRST_WAIT_S * 2.0 ** min(self._in_a_row, 10)
            self._rest_for(min(wait_s, self._longest_wait_s))
        self._in_a_row += 1


_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 2.0


def retry_for(for_s: float) -> Retrying:
    """Return what calls a function again until it answers, for so many seconds."""
    return Retrying(
        retry=retry_if_exception_type(KafkaUnreachable),
        stop=stop_after_delay(for_s),
        wait=wait_exponential(_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        reraise=True,
    )


def retry_until(stop: threading.Event, for_s: float) -> Retrying:
    """Return the same, which also gives up when `stop` is set."""
    asking = retry_for(for_s)
    return asking.copy(
        stop=stop_after_delay(for_s) | stop_when_event_set(stop), sleep=sleep_using_event(stop)
    )
