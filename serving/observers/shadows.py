"""ModelRegistry that score what others answer, beside the answer: how would they have done?

What was answered is handed over by reference, into a short queue; one thread reads the request as
the shadow's model reads it (which may know fields that the answering model does not), scores it,
and hands it to the log of predictions under the shadow's alias, with the same impression ids. So
both are joined with the same clicks. What the thread cannot keep up with is dropped and counted.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.ingest.http import RequestRefused
from headrace.serving.models import ReadyRequest, check_complete, score

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.serving.models import (
        AnswerObserver,
        ModelRegistry,
        Route,
        ScoredRequest,
        ServedModel,
    )
    from headrace.serving.requests import CheckedRequest

_MOST_WAITING = 64
"""Requests: a moment's worth. Shadows are a sample; a longer queue would only be an older one."""
_JOIN_S = 10.0


class _Shadowed(NamedTuple):
    target: Route
    answered: ScoredRequest
    read: Callable[[ServedModel], CheckedRequest]


class Shadows:
    """Scores beside answers, in a thread between `start` and `stop`."""

    def __init__(
        self,
        models: ModelRegistry,
        counted: Callable[[str, str], None],
        then: Sequence[AnswerObserver] = (),
    ) -> None:
        """`counted` is told model and outcome: `scored`, `dropped` or `refused`."""
        self._models, self._counted, self._then = models, counted, then
        self._waiting: deque[_Shadowed] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="shadows", daemon=True)

    def answered(
        self, scored: ScoredRequest, read: Callable[[ServedModel], CheckedRequest]
    ) -> None:
        """Take what was answered, if a shadow is to score it, or drop it. Never waits."""
        for target in self._models.shadows(scored.target):
            with self._changed:
                if len(self._waiting) >= _MOST_WAITING:
                    self._counted(target.served.spec.name, "dropped")
                    continue
                self._waiting.append(_Shadowed(target, scored, read))
                self._changed.notify()

    def start(self) -> None:
        """Begin to score."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits is not scored."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if self._ended:
                    return
                shadowed = self._waiting.popleft()
            self._score(shadowed)

    def _score(self, shadowed: _Shadowed) -> None:
        target, answered, read = shadowed
        model = target.served.spec.name
        try:
            standing = target.served.rows.standing
            check_complete(standing)
            asked = read(target.served)
        except RequestRefused:
            # it has rows to copy yet, or its spec cannot read what another's could
            self._counted(model, "refused")
            return
        predictor = target.served.spare or target.served.predictor
        rows = target.served.rows.reading()
        ready = ReadyRequest(target, asked, standing, answered.now_ms, answered.names, rows)
        scored = score(ready, predictor)
        if answered.chosen is not None:  # what was shown is what the answer had
            scored = scored._replace(chosen=answered.chosen)
        self._counted(model, "scored")
        for each in self._then:
            each.answered(scored, read)
