"""Whether everything that was sent has arrived: joined, learned, and applied in every bucket.

Two questions, both put to those who know and not to the processes that do the work, which may have
been killed since: has the joiner committed every input offset, and is the mark of every bucket at
the end of every partition of examples? Then no push is missing and none can come.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.deploy.errors import Stuck
from headrace.ingest.joiner import StateReader
from headrace.ingest.kafka import KafkaReader, Source, check_co_partitioned, examples_topic
from headrace.pserver import Unreachable

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from headrace.ingest.kafka import KafkaSettings
    from headrace.learner.spec import ModelSpec
    from headrace.pserver import BucketAnswer, Store

POLL_S = 0.05


class Backlog(NamedTuple):
    """What is still on its way."""

    events: int
    """In Kafka, not yet joined."""
    batches: int
    """Of examples: offsets that not every bucket has applied."""

    @property
    def nothing(self) -> bool:
        """Whether everything has arrived."""
        return self.events == 0 and self.batches == 0


@dataclass(frozen=True, slots=True)
class DrainTimeout:
    """How long to wait for what does not move."""

    stuck_after_s: float = 60.0
    """No mark and no offset moved for so long: longer than any restart of a killed part takes."""


class Drain:
    """Asks how far the parts have come. Close it."""

    def __init__(self, kafka: KafkaSettings, spec: ModelSpec, store: Store) -> None:
        self._store = store
        self._state = StateReader(kafka, spec)
        self._topic = examples_topic(spec.name)
        # the last stable offset would hide a batch committed a moment ago
        self._reader = KafkaReader(kafka, None, [self._topic], read_committed=False)
        self._topic_id = self._reader.topic_id(self._topic)
        self._buckets = range(store.shape().buckets)
        self._partitions = check_co_partitioned(kafka, [self._topic])

    def behind(self) -> Backlog:
        """Return what is still on its way. Raises KafkaUnreachable, MissingBucket."""
        # in this order: what is joined in between is seen in the end of the examples
        lag = self._state.read().lag
        ends = {
            f"{self._topic_id}/{partition}": self._reader.held(Source(self._topic, partition))[1]
            for partition in range(self._partitions)
        }
        answers = self._store.marks(self._buckets)
        batches = sum(end - min(_mark(answer, name) for answer in answers)
                      for name, end in ends.items())  # fmt: skip
        return Backlog(lag, batches)

    def wait(
        self,
        stop: threading.Event,
        patience: DrainTimeout,
        tell: Callable[[Backlog], None],
    ) -> bool:
        """Return True once everything has arrived, False if told to stop before.

        `tell` is called with what is still on its way, each time it was asked; what it raises
        ends the wait. Raises Stuck when nothing moves.
        """
        last, moved_s = None, time.monotonic()
        while not stop.is_set():
            behind = self.behind()
            tell(behind)
            if behind.nothing:
                return True
            if behind != last:
                last, moved_s = behind, time.monotonic()
            elif time.monotonic() - moved_s > patience.stuck_after_s:
                raise Stuck(
                    f"expected everything to be learned, found {behind.events} events not joined "
                    f"and {behind.batches} batches of examples not applied, and no change for "
                    f"{patience.stuck_after_s:.0f} s"
                )
            stop.wait(POLL_S)
        return False

    def close(self) -> None:
        """Disconnect from Kafka; the store is the caller's."""
        self._reader.close()


def _mark(answer: BucketAnswer | Unreachable, name: str) -> int:
    # a bucket that does not answer may have applied nothing: ask again
    return 0 if isinstance(answer, Unreachable) else answer.marks.get(name, 0)
