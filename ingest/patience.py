"""How long to ask again where Kafka is there but not ready: a leader moves, a topic was just made.

Only `KafkaUnreachable` is asked again: everything else stays as it is however long one waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential
from tenacity.nap import sleep_using_event
from tenacity.stop import stop_when_event_set

from ingest.errors import KafkaUnreachable

if TYPE_CHECKING:
    import threading

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 2.0


def ask_again(for_s: float) -> Retrying:
    """Return what calls a function again until it answers, for so many seconds."""
    return Retrying(
        retry=retry_if_exception_type(KafkaUnreachable),
        stop=stop_after_delay(for_s),
        wait=wait_exponential(_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
        reraise=True,
    )


def ask_again_until(stop: threading.Event, for_s: float) -> Retrying:
    """Return the same, which also gives up when `stop` is set."""
    asking = ask_again(for_s)
    return asking.copy(
        stop=stop_after_delay(for_s) | stop_when_event_set(stop), sleep=sleep_using_event(stop)
    )
