"""What was served, to Kafka, without an answer ever waiting for it.

An answer is handed over by reference, into a queue that holds so many candidates and no more; one
thread makes messages of them and sends them. When Kafka is slow or away the queue is full, and what
comes then is dropped, whole requests at a time, and counted: a log that has holes and says how many
is worth more than a server that waits.

A writer whose messages were not acknowledged in time is given up, with what it had not yet had
acknowledged (counted as dropped, though some of it may have arrived), and another is tried.

With a share below one, requests are drawn by chance, each with all its candidates.

The topic of what was served, and how it is made where it is missing: by whoever comes first.

A server that logs and an evaluation that reads may be started in either order. Who finds it there
takes it with as many partitions as it has.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.ingest import StreamError
from headrace.ingest.kafka import BY_KEY, Source, TopicSpec, ensure_topics, partition_counts
from headrace.serving.observers.prediction_message import messages_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.ingest.kafka import KafkaSettings, Writer
    from headrace.serving.models import ScoredRequest, ServedModel
    from headrace.serving.requests import CheckedRequest


TOPIC = "predictions"


_DAY_MS = 24 * 3600 * 1000


_KEPT_DAYS = 7


def ensure_predictions(kafka: KafkaSettings, partitions: int, topic: str = TOPIC) -> int:
    """Make the topic unless it is there; return how many partitions it has.

    Raises KafkaUnreachable, NotAllowed, TopicMismatch.
    """
    count = partition_counts(kafka, [topic]).get(topic, partitions)
    kept = {"retention.ms": str(_KEPT_DAYS * _DAY_MS)}
    ensure_topics(kafka, [TopicSpec(topic, count, {"cleanup.policy": "delete"}, kept)])
    return count


log = logging.getLogger(__name__)

_IDLE_S = 0.2
_RETRY_S = 1.0
_JOIN_S = 15.0


@dataclass(frozen=True, slots=True)
class PredictionLogSettings:
    """How much of what was served is logged."""

    share: float = 1.0
    """Of the requests, by chance; 0: none."""
    waiting_candidates: int = 20_000
    """That may wait for Kafka: some 20 MB, and a second or two of what one core logs."""


class PredictionLog:
    """Writes what was served, in a thread between `start` and `stop`."""

    def __init__(
        self,
        settings: PredictionLogSettings,
        open_writer: Callable[[], Writer],
        counted: Callable[[str, int], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`counted` is told how many candidates were `logged`, `dropped` or `sampled_out`."""
        self._settings, self._open = settings, open_writer
        self._counted, self._draw = counted, draw
        self._waiting: deque[ScoredRequest] = deque()
        self._candidates = 0
        self._changed = threading.Condition()
        self._ended = False
        self._writer: Writer | None = None
        self._thread = threading.Thread(target=self._run, name="predictions", daemon=True)

    def answered(
        self,
        scored: ScoredRequest,
        read: Callable[[ServedModel], CheckedRequest],  # noqa: ARG002
    ) -> None:
        """Take what was answered, or drop it. Never waits for Kafka."""
        share, count = self._settings.share, _candidates_of(scored)
        if share < 1.0 and self._draw() >= share:
            self._counted("sampled_out", count)
            return
        with self._changed:
            full = self._candidates and (
                self._candidates + count > self._settings.waiting_candidates
            )
            if full or self._ended:
                self._counted("dropped", count)
                return
            self._waiting.append(scored)
            self._candidates += count
            self._changed.notify()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, as far as Kafka takes it, and end."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended, _IDLE_S)
                waiting = list(self._waiting)
                ended = self._ended
            if not waiting:
                if ended:
                    break
                continue
            if not self._write(waiting) and not self._again(ended):
                break
        self._give_up()

    def _again(self, ended: bool) -> bool:
        """Wait before Kafka is tried again; whether to."""
        if not ended:
            with self._changed:
                self._changed.wait_for(lambda: self._ended, _RETRY_S)
            return True
        with self._changed:
            self._waiting.clear()
            left, self._candidates = self._candidates, 0
        self._counted("dropped", left)
        return False

    def _write(self, waiting: list[ScoredRequest]) -> bool:
        """Send these and wait until Kafka has them; whether it has."""
        try:
            if self._writer is None:
                self._writer = self._open()
        except StreamError as error:
            log.warning("predictions are not logged: %s", error)
            return False
        taken = 0
        try:
            for scored in waiting:
                taken += 1
                for key, value in messages_of(scored):
                    self._writer.send(Source(TOPIC, BY_KEY), value, key)
            self._writer.flush()
        except StreamError as error:
            log.warning("predictions were not logged: %s", error)
            self._done(taken, "dropped")
            self._give_up()
            return False
        self._done(taken, "logged")
        return True

    def _done(self, taken: int, outcome: str) -> None:
        count = 0
        with self._changed:
            for _ in range(taken):
                count += _candidates_of(self._waiting.popleft())
            self._candidates -= count
        self._counted(outcome, count)

    def _give_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except StreamError as error:
                log.debug("closing the log of predictions: %s", error)


def _candidates_of(scored: ScoredRequest) -> int:
    return len(scored.names if scored.chosen is None else scored.chosen)
