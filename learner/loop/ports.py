"""The connections and clocks that a learner is given.

Everything outside the learner's own arithmetic arrives here: Kafka, the store, time and random
numbers. The process passes the real ones, tests and the simulation pass fakes.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.runtime.clock import steady_ms

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Reader
    from headrace.ingest.kafka.reading.record_fetcher import RecordFetcher
    from headrace.learner.loop.exchange import Exchange
    from headrace.learner.loop.outputs import LearnerOutputs
    from headrace.pserver.store import Store


def _draw_nonce() -> bytes:
    return secrets.token_bytes(8)


@dataclass(frozen=True, slots=True)
class LearnerPorts:
    """Kafka and the store, as one learner uses them."""

    reader: Reader
    """Of the topic of examples."""
    outputs: LearnerOutputs
    """For scores and dead letters."""
    store: Store
    """For marks; pushes go through `exchange`."""
    exchange: Exchange
    fetcher: RecordFetcher | None = None
    """Reads parked messages again; None: what is parked stays parked."""
    accept_topic: str = ""
    """Identity of a recreated topic that continues at the old one's last offset: ExampleQueue."""
    accept_gap: bool = False
    """Whether to go on after examples that Kafka deleted before they were learned."""
    skip_damaged: tuple[str, ...] = ()
    """Damaged messages to skip, each as TOPIC/PARTITION@OFFSET: DamagedMessages."""


@dataclass(frozen=True, slots=True)
class LearnerClocks:
    """Time and random numbers.

    All intervals, retries and deadlines use a steady clock: the machine's wall clock can step back
    (NTP, an operator), and a learner that waited for it would stop pushing for as long.
    """

    steady_ms: Callable[[], int] = steady_ms
    """A clock that never steps back; its origin is arbitrary."""
    sleep: Callable[[float], None] = time.sleep
    """Waits this many seconds."""
    draw_nonce: Callable[[], bytes] = _draw_nonce
    """Returns the 8 bytes that identify a push."""
