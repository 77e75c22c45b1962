"""TODO."""

from __future__ import annotations

import itertools
import secrets
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from headrace.ingest.http import RequestRefused
from headrace.learner import NoUncertainty
from headrace.serving.replicas import age

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from headrace.serving.models.predictor import Predictor
    from headrace.serving.models.registry import Route, ServedModel
    from headrace.serving.replicas import ReplicaStatus, RowSource
    from headrace.serving.requests import Candidates, CheckedRequest


class ReadyRequest(NamedTuple):
    """A request that passed its checks, and what its answer is made from."""

    target: Route
    asked: CheckedRequest
    standing: ReplicaStatus
    now_ms: int
    names: Sequence[str]
    rows: RowSource

    def scored(self, scores: npt.NDArray[np.float64]) -> ScoredRequest:
        """Return it with these scores."""
        target, asked, standing, now_ms, names, rows = self
        chosen = None
        if asked.top_k is not None:
            chosen = np.argsort(-scores, kind="stable")[: asked.top_k]
        return ScoredRequest(target, asked, standing, now_ms, names, scores, chosen, rows.defaulted)


class ScoredRequest(NamedTuple):
    """A request with its scores."""

    target: Route
    asked: CheckedRequest
    standing: ReplicaStatus
    """Of the replica, as of just before."""
    now_ms: int
    names: Sequence[str]
    """Impression ids, given or made; of all candidates."""
    scores: npt.NDArray[np.float64]
    chosen: npt.NDArray[np.int64] | None
    """Places of the candidates that the answer has, in its order; None: all of them."""
    defaulted: int
    """RowSource that were read as if they did not exist, since they were not to be had in time."""
    uncertainties: npt.NDArray[np.float64] | None = None
    """Of all candidates; None unless they were asked for."""

    def uncertain(self, places: Sequence[int]) -> Sequence[float | None]:
        """Return what these candidates' entries in the answer say of it."""
        if self.uncertainties is None:
            return [None] * len(places)
        found: list[float | None] = self.uncertainties[np.asarray(places, np.int64)].tolist()
        return found


class AnswerObserver(Protocol):
    """Somebody who is told of every answer, and never makes it wait."""

    def answered(
        self, scored: ScoredRequest, read: Callable[[ServedModel], CheckedRequest]
    ) -> None:
        """Take note; `read` gives the request as another model reads it. Called on any thread."""


def score(ready: ReadyRequest, predictor: Predictor | None = None) -> ScoredRequest:
    """Return a request's scores, by the model's own predictor unless another is given."""
    predictor = predictor or ready.target.served.predictor
    return ready.scored(predictor.predict(ready.rows, ready.asked.candidates, ready.now_ms))


def uncertainties(ready: ReadyRequest) -> npt.NDArray[np.float64]:
    """Return how far one more outcome could move each score. Raises RequestRefused (422)."""
    predictor = ready.target.served.predictor
    try:
        return predictor.uncertainty(ready.rows, ready.asked.candidates, ready.now_ms)
    except NoUncertainty as error:
        expected = "a model whose optimizer keeps count of what it saw"
        raise RequestRefused(422, "uncertainty", expected, str(error)) from error


def check_complete(standing: ReplicaStatus) -> None:
    """Return if there is something to answer from. Raises RequestRefused (503)."""
    if not standing.complete:
        raise RequestRefused(
            503,
            "",
            f"all {standing.buckets} buckets of the model copied",
            standing.trouble or f"{standing.copied}: ask again in a moment",
        )


def check_fresh(asked: CheckedRequest, standing: ReplicaStatus, now_ms: int) -> None:
    """Return if the request's demands are met. Raises RequestRefused (412)."""
    least, most = asked.min_version, asked.max_age_ms
    if asked.snapshot is not None and standing.snapshot != asked.snapshot:
        found = standing.snapshot or f"a model that follows the logs, at version {standing.version}"
        raise RequestRefused(412, "snapshot", f"snapshot {asked.snapshot[:_LONGEST_SHOWN]}", found)
    if least is not None and standing.version < least:
        raise RequestRefused(
            412, "min_version", f"version {least} or later here", f"{standing.version}"
        )
    if most is not None:
        oldest = age(standing, now_ms).oldest
        if oldest is None or oldest > most:
            found = "nothing learned yet" if oldest is None else f"{oldest} ms"
            expected = f"information at most {most} ms old in every bucket of the model"
            raise RequestRefused(412, "max_age_ms", expected, f"{found} ({standing.state(now_ms)})")


class RequestNames:
    """Names for requests that no other process has, nor this one again.

    96 bits are drawn once, since to draw is a call to the system; then they are counted.
    """

    def __init__(self) -> None:
        self._drawn, self._numbers = secrets.token_hex(12), itertools.count()

    def __call__(self) -> str:
        """Return the next. Of any thread: to count is one step."""
        return f"{self._drawn}-{next(self._numbers):x}"


def names_of(candidates: Candidates, make: Callable[[], str]) -> list[str]:
    """Return an impression id for each candidate, made where it has none."""
    named = candidates.names()
    if all(named):
        return list(named)  # type: ignore[arg-type]
    made = make()  # once a request, for all that have no name
    return [name or f"{made}-{i}" for i, name in enumerate(named)]


_LONGEST_SHOWN = 80
"""Of a name that is none of ours: a snapshot's has less."""
