"""Logs served predictions to Kafka, without delaying an answer.

A request thread hands over the answer by reference, to the queue of a `BoundedWorker`. The worker
encodes messages and sends them. If Kafka is slow or down, the queue fills up, and further requests
are dropped as a whole and counted: a log with counted gaps is better than a server that waits.

A writer whose messages are not acknowledged in time is closed. Its unacknowledged requests count as
dropped, although some may have arrived, and a new writer is opened.

With a share below one, requests are sampled at random, each with all its candidates.

A server that logs and an evaluation that reads may start in either order: the first one creates the
topic, and the other accepts the partitions that it finds.

A message has one scored candidate:

    {"impression_id": "i1", "time": 1760000000000, "request_id": "r1", "model": "news",
     "alias": "production", "version": 812, "score": 0.043, "fields": {"article_id": "a1", ...}}

The key is the impression id, so a prediction is in the same partition as its impression and its
click. `fields` are the fields that the model reads, unchanged: with id and time they are an
impression.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from headrace.ingest.errors import StreamError
from headrace.ingest.events.contract import TIME
from headrace.ingest.kafka.producer import BY_KEY
from headrace.ingest.kafka.protocols import Source, Writer
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.kafka.topics import TopicSpec, ensure_topics, partition_counts
from headrace.serving.models.prediction import ReceivedRequest, ScoredRequest
from headrace.serving.observers.bounded_worker import BoundedWorker, memory_of
from headrace.serving.requests.candidates import ID

Messages = list[tuple[bytes, bytes]]

log = logging.getLogger(__name__)

TOPIC = "predictions"
_DAY_MS = 24 * 3600 * 1000
_KEPT_DAYS = 7
_RETRY_S = 1.0
_JOIN_S = 15.0


def ensure_predictions(kafka: KafkaSettings, partitions: int, topic: str = TOPIC) -> int:
    """Create the topic unless it exists; return its count of partitions.

    Raises KafkaUnreachable, NotAllowed, TopicMismatch.
    """
    count = partition_counts(kafka, [topic]).get(topic, partitions)
    kept = {"retention.ms": str(_KEPT_DAYS * _DAY_MS)}
    ensure_topics(kafka, [TopicSpec(topic, count, {"cleanup.policy": "delete"}, kept)])
    return count


@dataclass(frozen=True, slots=True)
class PredictionLogSettings:
    """Sampling and memory of the prediction log."""

    share: float = 1.0
    """Share of the requests, chosen at random; 0 logs nothing."""
    waiting_bytes: int = 32 << 20
    """Memory of the requests that wait for Kafka: about two seconds of one core's answers."""
    request_bytes: int = 16 << 20
    """Messages of one request. Each message repeats the context, so a large context with many
    candidates would grow to gigabytes; such a request is dropped."""


class PredictionLog(BoundedWorker[ScoredRequest]):
    """Writes served predictions, in a thread between `start` and `stop`."""

    def __init__(
        self,
        settings: PredictionLogSettings,
        open_writer: Callable[[], Writer],
        counted: Callable[[str, int], None],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`counted` takes an outcome and a count of candidates.

        Outcomes: `logged`, `dropped`, `sampled_out`, or `failed` by an exception.
        """
        super().__init__("predictions", settings.waiting_bytes, drains=True, join_s=_JOIN_S)
        self._settings, self._open = settings, open_writer
        self._counted, self._draw = counted, draw
        self._writer: Writer | None = None

    def answered(self, scored: ScoredRequest, received: ReceivedRequest) -> None:
        """Queue or drop an answer. Never waits for Kafka."""
        share = self._settings.share
        if share < 1.0 and self._draw() >= share:
            self._count([scored], "sampled_out")
        elif not self.put(scored, memory_of(scored, len(received.body))):
            self._count([scored], "dropped")

    def failed(self, item: ScoredRequest) -> None:
        """Count a request whose write raised."""
        self._count([item], "failed")

    def handle(self, items: list[ScoredRequest]) -> None:
        """Send the requests, and wait until Kafka has them."""
        waiting = deque(items)
        while waiting:
            writer = self._connected()
            if writer is None:
                self._count(waiting, "dropped")
                return
            taken: list[ScoredRequest] = []
            try:
                while waiting:
                    scored = waiting.popleft()
                    messages = self._encoded(scored)
                    if messages is not None:
                        taken.append(scored)
                        for key, value in messages:
                            writer.send(Source(TOPIC, BY_KEY), value, key)
                writer.flush()
            except StreamError as error:
                log.warning("predictions were not logged: %s", error)
                self._count(taken, "dropped")
                self.close()
                if waiting and self.pause(_RETRY_S):
                    self._count(waiting, "dropped")
                    return
            else:
                self._count(taken, "logged")

    def _connected(self) -> Writer | None:
        """Return the writer. Opens a missing one, with retries until the end; None: the end."""
        while self._writer is None:
            try:
                self._writer = self._open()
            except StreamError as error:
                log.warning("predictions are not logged: %s", error)
                if self.pause(_RETRY_S):
                    return None
        return self._writer

    def _encoded(self, scored: ScoredRequest) -> Messages | None:
        """Return the messages of a request; None if it was counted as failed or dropped."""
        messages: Messages = []
        left = self._settings.request_bytes
        try:
            for key, value in messages_of(scored):
                left -= len(value)
                if left < 0:
                    self._count([scored], "dropped")
                    return None
                messages.append((key, value))
        except Exception:
            log.exception("cannot encode a prediction of model %s", scored.target.served.spec.name)
            self._count([scored], "failed")
            return None
        return messages

    def _count(self, requests: Iterable[ScoredRequest], outcome: str) -> None:
        self._counted(outcome, sum(map(_candidates_of, requests)))

    def close(self) -> None:
        """Close the writer."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except StreamError as error:
                log.debug("closing the prediction log: %s", error)


class PredictionMessage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The prediction of one candidate."""

    impression_id: str
    time: int
    """Time of the candidate, or of the request, in ms."""
    request_id: str | None = None
    model: str
    alias: str
    """The requested alias, or the shadow's; empty if the request named the model."""
    version: int
    score: float
    fields: dict[str, object]


_encode = msgspec.json.Encoder().encode


def messages_of(scored: ScoredRequest) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of every candidate in the answer."""
    chosen = None if scored.chosen is None else set(scored.chosen.tolist())
    target, scores = scored.target, scored.scores.tolist()
    for place, event in enumerate(scored.request.candidates.events(scored.now_ms)):
        if chosen is not None and place not in chosen:
            continue
        name = scored.names[place]
        event.pop(ID, None)
        time_ms = event.pop(TIME)
        assert isinstance(time_ms, int)  # the decoder checked it
        message = PredictionMessage(
            impression_id=name,
            time=time_ms,
            request_id=scored.request.request_id,
            model=target.served.spec.name,
            alias=target.alias,
            version=scored.status.version,
            score=scores[place],
            fields=event,
        )
        yield name.encode(), _encode(message)


def _candidates_of(scored: ScoredRequest) -> int:
    return len(scored.names if scored.chosen is None else scored.chosen)
