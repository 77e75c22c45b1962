"""Scores requests with shadow models, beside the answer.

A request thread hands over the answer by reference, to the queue of a `BoundedWorker`. The worker
decodes the request for the shadow's model (which may read other fields than the model that
answered), scores it, and passes it on to the prediction log under the shadow's alias. The
impression ids stay the same, so both predictions are joined with the same clicks. Requests beyond
the capacity of the thread are dropped and counted.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.models.prediction import (
    AnswerObserver,
    ReadyRequest,
    ScoredRequest,
    check_complete,
    score,
)
from headrace.serving.models.registry import ModelRegistry, Route, ServedModel
from headrace.serving.observers.bounded_worker import BoundedWorker, memory_of
from headrace.serving.requests.candidates import CheckedRequest

_MOST_WAITING_BYTES = 4 << 20
"""Shadows are a sample: a longer queue would only be an older one. Besides, it keeps bodies."""


class _Shadowed(NamedTuple):
    target: Route
    answered: ScoredRequest
    read: Callable[[ServedModel], CheckedRequest]
    body: bytes


class Shadows:
    """Scores beside answers, in a thread between `start` and `stop`."""

    def __init__(
        self,
        models: ModelRegistry,
        counted: Callable[[str, str], None],
        then: Sequence[AnswerObserver] = (),
        most_bytes: int = _MOST_WAITING_BYTES,
    ) -> None:
        """`counted` takes a model and an outcome.

        Outcomes: `scored`, `dropped`, `refused`, or `failed` by an exception.
        """
        self._models, self._counted, self._then = models, counted, then
        self._worker: BoundedWorker[_Shadowed] = BoundedWorker(
            "shadows",
            most_bytes,
            lambda batch: self._score(*batch),
            lambda shadowed: counted(shadowed.target.served.spec.name, "failed"),
            batch_items=1,
        )

    def answered(
        self,
        scored: ScoredRequest,
        read: Callable[[ServedModel], CheckedRequest],
        body: bytes,
    ) -> None:
        """Queue or drop an answer for each of its shadow models. Never waits."""
        for target in self._models.shadows(scored.target):
            shadowed = _Shadowed(target, scored, read, body)
            if not self._worker.put(shadowed, memory_of(scored, 2 * len(body))):  # `read` has it
                self._counted(target.served.spec.name, "dropped")

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread. Queued requests are not scored."""
        self._worker.stop()

    def _score(self, shadowed: _Shadowed) -> None:
        target, answered, read, body = shadowed
        model = target.served.spec.name
        try:
            status = target.served.rows.status
            check_complete(status)
            request = read(target.served)
        except RequestRefused:
            # the shadow's replica is incomplete, or its spec cannot read the request
            self._counted(model, "refused")
            return
        predictor = target.served.spare or target.served.predictor
        rows = target.served.rows.reading()
        ready = ReadyRequest(target, request, status, answered.now_ms, answered.names, rows)
        scored = score(ready, predictor)
        if answered.chosen is not None:  # log the candidates that were shown
            scored = scored._replace(chosen=answered.chosen)
        self._counted(model, "scored")
        for observer in self._then:
            observer.answered(scored, read, body)
