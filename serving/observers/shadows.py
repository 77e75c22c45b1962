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
    ReceivedRequest,
    ScoredRequest,
    check_complete,
    score,
)
from headrace.serving.models.registry import ModelRegistry, Route
from headrace.serving.observers.bounded_worker import BoundedWorker, memory_of

_MOST_WAITING_BYTES = 4 << 20
"""Shadows are a sample: a longer queue would only be an older one. Besides, it keeps bodies."""


class _Shadowed(NamedTuple):
    target: Route
    answered: ScoredRequest
    received: ReceivedRequest


class Shadows(BoundedWorker[_Shadowed]):
    """Scores beside answers, in a thread between `start` and `stop`."""

    def __init__(
        self,
        models: ModelRegistry,
        counted: Callable[[str, str], None],
        then: Sequence[AnswerObserver] = (),
    ) -> None:
        """`counted` takes a model and an outcome.

        Outcomes: `scored`, `dropped`, `refused`, or `failed` by an exception.
        """
        super().__init__("shadows", _MOST_WAITING_BYTES, batch_items=1)
        self._models, self._counted, self._then = models, counted, then

    def answered(self, scored: ScoredRequest, received: ReceivedRequest) -> None:
        """Queue or drop an answer for each of its shadow models. Never waits."""
        size = memory_of(scored, 2 * len(received.body))  # as it came, and decoded
        for target in self._models.shadows(scored.target):
            if not self.put(_Shadowed(target, scored, received), size):
                self._counted(target.served.spec.name, "dropped")

    def failed(self, item: _Shadowed) -> None:
        """Count a request whose scoring raised."""
        self._counted(item.target.served.spec.name, "failed")

    def handle(self, items: list[_Shadowed]) -> None:
        """Score one request."""
        [(target, answered, received)] = items
        model = target.served.spec.name
        try:
            status = target.served.rows.status
            check_complete(status)
            request = received.read(target.served)
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
            observer.answered(scored, received)
