"""Retries: requests to a Kafka that is not ready, and transactions that were aborted.

`retry_for` repeats a request while Kafka is reachable but not ready: a leader moves, a topic is
new. It repeats only after `KafkaUnreachable`; waiting does not change any other error. `not_before`
repeats an answer that is older than what was read.

`AbortBackoff` writes the transactions of processes that read, work and write. After an abort they
go back to the last commit and do the same work again. That may go on while Kafka comes back, but
neither forever nor as fast as the machine can.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set

from headrace.ingest.errors import KafkaUnreachable, TransactionAborted

log = logging.getLogger(__name__)

_FIRST_ABORT_WAIT_S, _LONGEST_ABORT_WAIT_S = 0.05, 5.0


class AbortBackoff:
    """Counts the aborts since the last commit, and waits between attempts."""

    def __init__(
        self,
        give_up_s: float,
        now_ms: Callable[[], int],
        rest: Callable[[float], object],
    ) -> None:
        """rest: waits for this many seconds, or less if the process is stopped."""
        self._give_up_s, self._now_ms = give_up_s, now_ms
        self._rest_for = rest
        self._in_a_row = 0
        self._since_ms: int | None = None

    def committed(self, write: Callable[[], object]) -> bool:
        """Write a transaction; return whether it is committed.

        If not, the caller goes back to its last commit, because the output was not, or perhaps was,
        written. This call waits before: not after the first abort, then twice as long each time.
        Raises the error of an abort if the last commit is too long ago.
        """
        try:
            write()
        except (TransactionAborted, KafkaUnreachable) as error:
            now_ms = self._now_ms()
            if self._since_ms is None:
                self._since_ms = now_ms
            if now_ms - self._since_ms > self._give_up_s * 1000:
                raise
            log.warning("transaction aborted, going back to the last commit: %s", error)
        else:
            self._in_a_row, self._since_ms = 0, None
            return True
        self._wait()
        return False

    def _wait(self) -> None:
        if self._in_a_row:
            wait_s = _FIRST_ABORT_WAIT_S * 2.0 ** min(self._in_a_row, 10)
            self._rest_for(min(wait_s, _LONGEST_ABORT_WAIT_S))
        self._in_a_row += 1


_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 2.0


class _Retrying(Retrying):
    """A caller that leaves nothing behind when it gives up.

    tenacity's error and its frames refer to each other, and frames refer to those of their callers.
    A process that seldom collects garbage would keep all of it.
    """

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(fn, *args, **kwargs)
        except BaseException:
            traceback.clear_frames(sys.exc_info()[2])
            raise


def retry_for(for_s: float) -> Retrying:
    """Return a caller that repeats a function until it succeeds, for this many seconds."""
    return _Retrying(
        retry=retry_if_exception_type(KafkaUnreachable),
        stop=stop_after_delay(for_s),
        wait=wait_exponential(_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        reraise=True,
    )


def not_before(
    ask: Callable[[], tuple[int, int]], reached: int, patience: Retrying
) -> tuple[int, int]:
    """Return the bounds of a log, asked for again while it ends before `reached`.

    A broker that was cut off answers with an older end until it learns of its successor. An end
    that repeats for longer than that is taken.
    """
    bounds = ask()

    def again() -> tuple[int, int]:
        if (found := ask())[1] < reached:
            raise KafkaUnreachable(f"expected an end of {reached} or more, got {found[1]}")
        return found

    if bounds[1] < reached:
        try:
            return patience(again)
        except KafkaUnreachable:
            return ask()
    return bounds


def retry_until(stop: threading.Event, for_s: float) -> Retrying:
    """Return a caller like `retry_for`'s that also gives up when `stop` is set."""
    retrying = retry_for(for_s)
    return retrying.copy(
        stop=stop_after_delay(for_s) | stop_when_event_set(stop), sleep=sleep_using_event(stop)
    )
