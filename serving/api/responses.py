"""Response bodies: predictions, rankings, the status of a model.

Every answer carries the model's version, the age of its newest and oldest bucket, and the state of
the replica (`state`). A shard that stops responding is thus visible in every answer.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from headrace.learner.models.explanations import Explanations
from headrace.serving.models.absent_rows import learned_shares
from headrace.serving.models.registry import ServedModel
from headrace.serving.observers.request_coverage import RequestFields
from headrace.serving.replicas.freshness import FreshnessSummary
from headrace.serving.replicas.status import (
    Age,
    EventTime,
    ReplicaStatus,
    age,
    event_age,
    event_time,
)

_DIGITS = 4
_LARGEST_PAIRS = 20
"""In an explanation: thirty fields make 435 pairs, and most of them are small."""


class PairPart(msgspec.Struct, frozen=True, gc=False):
    """The part of a pair of fields in the log-odds."""

    fields: tuple[str, str]
    """One field twice: pairs of items of one bag."""
    log_odds: float


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of one score, in log-odds."""

    method: str
    """`exact`: parts, pairs and other pairs sum to the log-odds. `leave-one-out`, for networks: a
    part is the log-odds minus the log-odds without the field."""
    log_odds: float
    """Log-odds of the score."""
    parts: dict[str, float]
    """By the name of a field or statistic; also `intercept` and `calibration`."""
    pairs: list[PairPart] = []
    """Of a factorization machine: the largest, in descending order of size."""
    other_pairs: float = 0.0
    """The sum of the other pairs."""


# gc=False: an answer has hundreds of them, and they never form cycles
class CandidateScore(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The score of one candidate."""

    impression_id: str
    """The given or generated id: send the impression and its click with this id."""
    score: float
    """Click probability."""
    uncertainty: float | None = None
    """Largest change of the log-odds by one more outcome; present only on request."""
    explanation: Explanation | None = None
    """The parts of the score; present only on request."""


class RankedCandidate(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A candidate of a ranking."""

    index: int
    """Its position in the request, from 0."""
    impression_id: str
    """The given or generated id: send the impression and its click with this id."""
    score: float
    """Click probability."""
    uncertainty: float | None = None
    """Largest change of the log-odds by one more outcome; present only on request."""
    explanation: Explanation | None = None
    """The parts of the score; present only on request."""


class ResponseBase(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Fields of every answer: the model and its freshness."""

    model: str
    alias: str = ""
    """The requested alias; absent if the request named the model."""
    version: int
    """Sum of the versions of the model's buckets. Grows with every folded push."""
    state: str
    """`fresh`, or the reason why not: `starting`, `behind` the logs, `unreachable` buckets,
    `trouble`, or a `snapshot`, which never changes."""
    snapshot: str = ""
    """The snapshot that answered; absent if the model follows the logs."""
    age_ms: Age
    event_ms: EventTime
    event_age_ms: Age
    """Now minus `event_ms`. For replayed events, the age of the original event."""
    defaulted_rows: int = 0
    """Rows that a caching replica did not fetch in time and scored with their initial values;
    absent if 0."""
    request_id: str | None = None
    """As given in the request."""


class PredictResponse(ResponseBase, frozen=True, omit_defaults=True, kw_only=True):
    """Predictions in the order of the candidates."""

    predictions: list[CandidateScore]


class RankResponse(ResponseBase, frozen=True, omit_defaults=True, kw_only=True):
    """The candidates with the highest scores, in descending order; ties keep request order."""

    ranking: list[RankedCandidate]


def explained_answers(explained: Explanations | None, answers: int) -> list[Explanation | None]:
    """Return the explanation of each answer; None for each if not requested."""
    if explained is None:
        return [None] * answers
    return [_written(explained, i) for i in range(answers)]


def _written(explained: Explanations, i: int) -> Explanation:
    pairs = explained.pair_parts[i]
    order = np.argsort(-np.abs(pairs), kind="stable")
    largest, others = order[:_LARGEST_PAIRS].tolist(), order[_LARGEST_PAIRS:]
    return Explanation(
        explained.method,
        float(explained.log_odds[i]),
        dict(zip(explained.names, explained.parts[i].tolist(), strict=True)),
        [PairPart(explained.pairs[k], float(pairs[k])) for k in largest],
        float(pairs[others].sum()),
    )


class Buckets(msgspec.Struct, frozen=True):
    """Counts of the model's buckets on this server."""

    total: int
    complete: int
    unreachable: int


class FieldShares(msgspec.Struct, frozen=True):
    """Shares, from 0 to 1, with a value for a declared field."""

    source: str
    """The field of requests and events that is read."""
    requests: float | None
    """Of the candidates in recent requests to this process; null without requests."""
    learned: float | None
    """Of all learned impressions; null for bags and plain numbers, which are not counted."""


class ModelStatus(msgspec.Struct, frozen=True):
    """Status of a model on this server."""

    model: str
    architecture: str
    fingerprint: str
    """Of the spec; equal to that on the parameter server."""
    ready: bool
    state: str
    """`incomplete` (no answers yet), `trouble`, `unreachable`, `starting`, `behind`, `fresh`; or a
    `snapshot`, which never changes."""
    version: int
    age_ms: Age
    event_ms: EventTime
    event_age_ms: Age
    rows: int
    buckets: Buckets
    freshness: FreshnessSummary
    trouble: str
    """An error that needs an operator; empty if there is no error."""
    snapshot: str
    """The served snapshot; empty if the model follows the logs."""
    fields: dict[str, FieldShares] = {}
    """By the name of a field that requests should have."""
    unknown_fields: dict[str, float] = {}
    """Share of the candidates in recent requests with a field that the spec does not name."""


class StatusFields:
    """The fields of answers that depend on the replica status: built once per millisecond."""

    def __init__(self) -> None:
        self._last: tuple[ReplicaStatus, int, dict[str, Any]] | None = None

    def of(self, status: ReplicaStatus, now_ms: int) -> dict[str, Any]:
        """Return the fields by their names in `ResponseBase`. Do not change the result."""
        last = self._last  # replaced as a whole: long requests have a thread of their own
        if last is None or last[0] is not status or last[1] != now_ms:
            fields = {
                "version": status.version,
                "state": status.state(now_ms),
                "snapshot": status.snapshot,
                "age_ms": age(status, now_ms),
                "event_ms": event_time(status),
                "event_age_ms": event_age(status, now_ms),
            }
            last = self._last = status, now_ms, fields
        return last[2]


def status(served: ServedModel, now_ms: int, requests: RequestFields | None = None) -> ModelStatus:
    """Return the status of a model at `now_ms`. requests: those to this process, if sampled."""
    status = served.rows.status
    return ModelStatus(
        model=served.spec.name,
        architecture=served.spec.architecture,
        fingerprint=served.spec.fingerprint,
        ready=status.complete,
        state=status.state(now_ms),
        version=status.version,
        age_ms=age(status, now_ms),
        event_ms=event_time(status),
        event_age_ms=event_age(status, now_ms),
        rows=status.rows,
        buckets=Buckets(status.buckets, status.copied, status.unreachable),
        freshness=served.rows.freshness(),
        trouble=status.trouble,
        snapshot=status.snapshot,
        fields={} if requests is None else _field_shares(served, requests, now_ms),
        unknown_fields={} if requests is None else _rounded_all(requests.unknown),
    )


def _field_shares(
    served: ServedModel, requests: RequestFields, now_ms: int
) -> dict[str, FieldShares]:
    requested = {each.name: requests.declared.share(each.name) for each in requests.fields}
    known = _rounded_all({name: share for name, share in requested.items() if share is not None})
    learned: dict[str, float] = {}
    if served.rows.status.complete:
        rows = served.rows.reading()
        learned = _rounded_all(learned_shares(served.spec.fields, rows, now_ms))
    return {
        each.name: FieldShares(each.source, known.get(each.name), learned.get(each.name))
        for each in requests.fields
    }


def _rounded_all(shares: Mapping[str, float]) -> dict[str, float]:
    return {name: round(share, _DIGITS) for name, share in shares.items()}
