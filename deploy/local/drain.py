"""Waits until every event that was sent is joined, learned and applied in every bucket.

Two conditions hold then: the joiner has committed every input offset, and the mark of every bucket
is at the end of every partition of examples. No push is missing and none can follow. Kafka and the
store answer both; the processes that do the work may have been killed since.

A parked message is passed, but not learned. With nothing else to do the learner tries each of them
once more, so the wait goes on for as long as that takes.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from headrace.deploy.errors import Stuck
from headrace.ingest.errors import KafkaUnreachable
from headrace.ingest.joiner.committed_state import StateReader
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import check_co_partitioned, examples_topic
from headrace.learner.loop.marks.parked_marks import parked_messages
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.errors import Unreachable
from headrace.pserver.store import BucketAnswer, Store
from headrace.runtime.counted_nouns import counted

POLL_S = 0.05
STUCK_AFTER_S = 60.0
"""Longer than any restart of a killed part takes."""
_PARKED_S = 10.0
"""At most, for parked batches to be tried once more: the learner tries one each second."""


class Backlog(NamedTuple):
    """Events and batches that are not applied yet."""

    events: int
    """Events in Kafka that are not joined."""
    batches: int
    """Batches of examples that not every bucket has applied."""
    parked: int
    """Batches that the learner has parked: they are no backlog."""

    @property
    def nothing(self) -> bool:
        """Whether the backlog is empty."""
        return self.events == 0 and self.batches == 0


class Drain:
    """Measures the backlog of a pipeline. Call `close` at the end."""

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
        """Return the backlog. Raises KafkaUnreachable, MissingBucket."""
        # in this order: events joined in between appear at the end of the examples
        lag = self._state.read().lag
        ends = {
            f"{self._topic_id}/{partition}": self._reader.bounds(Source(self._topic, partition))[1]
            for partition in range(self._partitions)
        }
        answers = self._store.marks(self._buckets)
        # a mark read after an end may be past it, and must not hide what another partition lacks
        batches = sum(
            max(0, end - min(_mark(answer, name) for answer in answers))
            for name, end in ends.items()
        )
        known = (each.marks for each in answers if not isinstance(each, Unreachable))
        return Backlog(lag, batches, len(parked_messages(known)))

    def wait(
        self,
        stop: threading.Event,
        tell: Callable[[Backlog], None],
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> bool:
        """Return True once the backlog is empty, False if `stop` is set before.

        `tell` is called with every measurement, and an exception of it ends the wait. Raises Stuck
        if the backlog does not change for `stuck_after_s`, KafkaUnreachable if Kafka is away then.
        """
        last: Backlog | None = None
        moved_s = time.monotonic()
        while not stop.is_set():
            try:
                behind = self.behind()
            except KafkaUnreachable:
                # a killed broker is restarted meanwhile
                if last is None or time.monotonic() - moved_s > stuck_after_s:
                    raise
                behind = last
            tell(behind)
            if behind != last:
                last, moved_s = behind, time.monotonic()
            still_s = time.monotonic() - moved_s
            tries_s = min(_PARKED_S, 2.0 + behind.parked) if behind.parked else 0.0
            if behind.nothing and still_s >= tries_s:
                return True
            if not behind.nothing and still_s > stuck_after_s:
                raise Stuck(
                    f"expected every event to be learned, got {counted(behind.events, 'event')} to "
                    f"join and {counted(behind.batches, 'batch')} of examples to apply, without a "
                    f"change for {stuck_after_s:.0f} s: see the logs of the joiner and "
                    "the learner"
                )
            stop.wait(POLL_S)
        return False

    def close(self) -> None:
        """Disconnect from Kafka. The caller closes the store."""
        self._reader.close()


def _mark(answer: BucketAnswer | Unreachable, name: str) -> int:
    # an unreachable bucket counts as having applied nothing
    return 0 if isinstance(answer, Unreachable) else answer.marks.get(name, 0)
