"""The steps of a prediction: checks of the replica, scores, names and uncertainties.

Pure functions and the values that pass between them: a `ReceivedRequest` becomes a `ReadyRequest`
once it is decoded and the replica meets its demands, and a `ScoredRequest` with its scores. The
HTTP handler, the micro-batcher and the shadow models all use these steps.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headrace.learner.errors import NoUncertainty
from headrace.learner.models.explanations import Explanations
from headrace.runtime.http.http_errors import RequestRefused
from headrace.serving.models.predictor import Predictor
from headrace.serving.models.registry import Route, ServedModel
from headrace.serving.replicas.status import ReplicaStatus, RowSource, age
from headrace.serving.requests.candidates import Candidates, CheckedRequest


class RequestVerb(Protocol):
    """Reads requests and writes answers of one route."""

    def read(self, served: ServedModel, body: bytes) -> CheckedRequest:
        """Decode a request to this model. Raises RequestRefused."""

    def write(self, scored: ScoredRequest) -> bytes:
        """Encode the answer."""


class ReceivedRequest(NamedTuple):
    """A complete request, and the model that answers it."""

    target: Route
    body: bytes
    verb: RequestVerb
    since_s: float
    """Monotonic time at which the body was complete."""

    def read(self, served: ServedModel) -> CheckedRequest:
        """Decode it as a request to this model. Raises RequestRefused."""
        return self.verb.read(served, self.body)


class ReadyRequest(NamedTuple):
    """A request that passed all checks, with the rows and the status to answer it from."""

    target: Route
    request: CheckedRequest
    status: ReplicaStatus
    now_ms: int
    names: Sequence[str]
    rows: RowSource

    def scored(self, scores: npt.NDArray[np.float64]) -> ScoredRequest:
        """Return the request with these scores."""
        target, request, status, now_ms, names, rows = self
        chosen = None
        if request.top_k is not None:
            chosen = np.argsort(-scores, kind="stable")[: request.top_k]
        return ScoredRequest(target, request, status, now_ms, names, scores, chosen, rows.defaulted)


class ScoredRequest(NamedTuple):
    """A request with its scores."""

    target: Route
    request: CheckedRequest
    status: ReplicaStatus
    """The replica's status just before scoring."""
    now_ms: int
    names: Sequence[str]
    """Impression ids of all candidates, given or generated."""
    scores: npt.NDArray[np.float64]
    chosen: npt.NDArray[np.int64] | None
    """Indices of the candidates in the answer, in its order; None: all candidates."""
    defaulted: int
    """Rows that were not fetched in time and were scored with their initial values."""
    uncertainties: npt.NDArray[np.float64] | None = None
    """Of all candidates; None unless requested."""
    explained: Explanations | None = None
    """For the candidates in the answer, in its order; None unless requested."""

    def uncertain(self, places: Sequence[int]) -> Sequence[float | None]:
        """Return the uncertainties of these candidates; None for each if not requested."""
        if self.uncertainties is None:
            return [None] * len(places)
        found: list[float | None] = self.uncertainties[np.asarray(places, np.int64)].tolist()
        return found


class AnswerObserver(Protocol):
    """Receives every answer. Must not block."""

    def answered(self, scored: ScoredRequest, received: ReceivedRequest) -> None:
        """Receive an answer, on any thread."""


def score(ready: ReadyRequest, predictor: Predictor | None = None) -> ScoredRequest:
    """Score a request with the model's predictor, or with `predictor` if given."""
    predictor = predictor or ready.target.served.predictor
    return ready.scored(predictor.predict(ready.rows, ready.request.candidates, ready.now_ms))


def uncertainties(ready: ReadyRequest) -> npt.NDArray[np.float64]:
    """Return the largest change of each log-odds by one more outcome.

    Raises RequestRefused (422).
    """
    predictor = ready.target.served.predictor
    try:
        return predictor.uncertainty(ready.rows, ready.request.candidates, ready.now_ms)
    except NoUncertainty as error:
        expected = "a model whose optimizer counts observations"
        raise RequestRefused(422, "uncertainty", expected, str(error)) from error


def explanations(ready: ReadyRequest, scored: ScoredRequest) -> Explanations:
    """Return what each field contributes to the scores in the answer, in its order."""
    candidates = ready.request.candidates
    if scored.chosen is not None:
        candidates = candidates.at(scored.chosen.tolist())
    served = ready.target.served
    found = served.predictor.explain(ready.rows, candidates, ready.now_ms)
    if scored.chosen is not None and served.spec.compares_candidates:
        return found.within(scored.scores[scored.chosen])
    return found


def check_complete(status: ReplicaStatus) -> None:
    """Check that the replica is complete. Raises RequestRefused (503)."""
    if not status.complete:
        raise RequestRefused(
            503,
            "",
            f"all {status.buckets} buckets of the model copied",
            status.trouble or f"{status.copied}: retry in a moment",
        )


def check_fresh(request: CheckedRequest, status: ReplicaStatus, now_ms: int) -> None:
    """Check the freshness that the request demands. Raises RequestRefused (412)."""
    least, most = request.min_version, request.max_age_ms
    if request.snapshot is not None and status.snapshot != request.snapshot:
        found = status.snapshot or f"a model that follows the logs, version {status.version}"
        raise RequestRefused(
            412, "snapshot", f"snapshot {request.snapshot[:_LONGEST_SHOWN]}", found
        )
    if least is not None and status.version < least:
        raise RequestRefused(
            412, "min_version", f"version {least} or later here", f"{status.version}"
        )
    if most is not None:
        oldest = age(status, now_ms).oldest
        if oldest is None or oldest > most:
            found = "nothing learned yet" if oldest is None else f"{oldest} ms"
            expected = f"information at most {most} ms old in every bucket of the model"
            raise RequestRefused(412, "max_age_ms", expected, f"{found} ({status.state(now_ms)})")


class RequestNames:
    """Generates request names that are unique across processes.

    A name is 96 random bits, drawn once because drawing is a system call, and a counter.
    """

    def __init__(self) -> None:
        self._drawn, self._numbers = secrets.token_hex(12), itertools.count()

    def __call__(self) -> str:
        """Return the next name. Safe from any thread, because `next` of a count is atomic."""
        return f"{self._drawn}-{next(self._numbers):x}"


def names_of(candidates: Candidates, make: Callable[[], str]) -> list[str]:
    """Return the impression id of each candidate, generated if it has none."""
    named = candidates.names()
    if all(named):
        return list(named)  # type: ignore[arg-type]
    stem = make()  # once per request
    return [name or f"{stem}-{i}" for i, name in enumerate(named)]


_LONGEST_SHOWN = 80
"""Characters of an unknown snapshot's name; real names are shorter."""
