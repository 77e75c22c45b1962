"""What a server says: predictions, rankings, the status of a model.

Every answer carries the version and how old its information is: the freshest and the stalest
bucket, so that a shard that stopped answering shows in the numbers of every answer, and a word for
how the replica stands (`state`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace.serving.replicas import Age, EventTime, age, event_age, event_time

if TYPE_CHECKING:
    from headrace.serving.models import ServedModel
    from headrace.serving.replicas import ReplicaStatus


# hundreds an answer, never in a cycle
class CandidateScore(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One candidate."""

    impression_id: str
    """As given, else made: log the impression and its click under it."""
    score: float
    """Probability of a click."""
    uncertainty: float | None = None
    """How far one more outcome could move its log-odds; left out unless it was asked for."""


class RankedCandidate(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One of the likeliest candidates."""

    index: int
    """Its place among the candidates, from 0."""
    impression_id: str
    """As given, else made: log the impression and its click under it."""
    score: float
    """Probability of a click."""
    uncertainty: float | None = None
    """How far one more outcome could move its log-odds; left out unless it was asked for."""


class ResponseBase(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What every answer says of the information that it came from."""

    model: str
    alias: str = ""
    """The alias that was asked; left out if the model was asked by its name."""
    version: int
    """Sum of the versions of the model's buckets: grows with every push that was folded."""
    state: str
    """`fresh`, or why not: `starting`, `behind` the logs, `unreachable` buckets, `trouble`, or a
    `snapshot`, which stays as it is."""
    snapshot: str = ""
    """The snapshot that was answered from; left out if the model follows the logs."""
    age_ms: Age
    event_ms: EventTime
    event_age_ms: Age
    """Now less `event_ms`: of events that are replayed, their real age."""
    defaulted_rows: int = 0
    """Rows of the model that a bounded replica did not get in time, and that were taken as if they
    had not learned anything; left out if there were none."""
    request_id: str | None = None
    """As given."""


class PredictResponse(ResponseBase, frozen=True, omit_defaults=True, kw_only=True):
    """Predictions, in the order of the candidates."""

    predictions: list[CandidateScore]


class RankResponse(ResponseBase, frozen=True, omit_defaults=True, kw_only=True):
    """The likeliest candidates, the likeliest first; of equal ones the earlier first."""

    ranking: list[RankedCandidate]


class Buckets(msgspec.Struct, frozen=True):
    """The model's parts, as this server has them."""

    total: int
    complete: int
    unreachable: int


class FreshnessMs(msgspec.Struct, frozen=True):
    """From a click's append to Kafka to its arrival in this replica, of recent clicks."""

    p50_ms: float | None
    p99_ms: float | None
    count: int
    """Clicks since the server was complete."""


class ModelStatus(msgspec.Struct, frozen=True):
    """How a model stands on this server."""

    model: str
    architecture: str
    fingerprint: str
    """Of the spec: the parameter server has the same."""
    ready: bool
    state: str
    """`incomplete` (no answers yet), `trouble`, `unreachable`, `starting`, `behind`, `fresh`; or a
    `snapshot`, which stays as it is."""
    version: int
    age_ms: Age
    event_ms: EventTime
    event_age_ms: Age
    rows: int
    buckets: Buckets
    freshness: FreshnessMs
    trouble: str
    """What was said that an operator has to mend; empty if nothing."""
    snapshot: str
    """The snapshot that is served; empty if the model follows the logs."""


class _StatusValues(NamedTuple):
    """What answers say of a standing at some time."""

    standing: ReplicaStatus
    now_ms: int
    said: dict[str, Any]


class StatusFields:
    """What answers say of a model's standing: put together once for those of one millisecond."""

    def __init__(self) -> None:
        self._last: _StatusValues | None = None

    def of(self, standing: ReplicaStatus, now_ms: int) -> dict[str, Any]:
        """Return it by the names of `ResponseBase`; to be read only."""
        last = self._last
        if last is None or last.now_ms != now_ms or last.standing is not standing:
            said = {
                "version": standing.version,
                "state": standing.state(now_ms),
                "snapshot": standing.snapshot,
                "age_ms": age(standing, now_ms),
                "event_ms": event_time(standing),
                "event_age_ms": event_age(standing, now_ms),
            }
            last = self._last = _StatusValues(standing, now_ms, said)
        return last.said


def status(served: ServedModel, now_ms: int) -> ModelStatus:
    """Return how a model stands at `now_ms`."""
    standing, summary = served.rows.standing, served.rows.freshness()
    return ModelStatus(
        model=served.spec.name,
        architecture=served.spec.architecture,
        fingerprint=served.spec.fingerprint,
        ready=standing.complete,
        state=standing.state(now_ms),
        version=standing.version,
        age_ms=age(standing, now_ms),
        event_ms=event_time(standing),
        event_age_ms=event_age(standing, now_ms),
        rows=standing.rows,
        buckets=Buckets(standing.buckets, standing.copied, standing.unreachable),
        freshness=FreshnessMs(summary.p50_ms, summary.p99_ms, summary.count),
        trouble=standing.trouble,
        snapshot=standing.snapshot,
    )
