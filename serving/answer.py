"""What a server says: predictions, the status of a model.

Every answer carries the version and how old its information is: the freshest and the stalest
bucket, so that a shard that stopped answering shows in the numbers of every answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from serving.follower import Follower, Standing


class Age(msgspec.Struct, frozen=True, gc=False):
    """Now less the append time of the newest event learned; null if none is known. In ms."""

    newest: int | None
    """Of the bucket that is ahead."""
    oldest: int | None
    """Of the bucket that is behind. Both grow while no event comes."""


class Prediction(msgspec.Struct, frozen=True, gc=False):  # hundreds an answer, never in a cycle
    """One candidate."""

    impression_id: str
    """As given, else made: log the impression and its click under it."""
    score: float
    """Probability of a click."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Predictions, in the order of the candidates."""

    model: str
    version: int
    """Sum of the versions of the model's buckets: grows with every push that was folded."""
    age_ms: Age
    predictions: list[Prediction]
    request_id: str | None = None
    """As given."""


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


class Status(msgspec.Struct, frozen=True):
    """How a model stands on this server."""

    model: str
    architecture: str
    fingerprint: str
    """Of the spec: the parameter server has the same."""
    ready: bool
    version: int
    age_ms: Age
    rows: int
    buckets: Buckets
    freshness: FreshnessMs
    trouble: str
    """What the parameter server said that an operator has to mend; empty if nothing."""


encode = msgspec.json.Encoder().encode


def age(standing: Standing, now_ms: int) -> Age:
    """Return how old the information is at `now_ms`."""
    newest, oldest = standing.ages
    return Age(
        None if newest is None else max(0, now_ms - newest),
        None if oldest is None else max(0, now_ms - oldest),
    )


def status(
    model: str, architecture: str, fingerprint: str, follower: Follower, now_ms: int
) -> Status:
    """Return how a model stands at `now_ms`."""
    standing, summary = follower.standing, follower.freshness()
    return Status(
        model=model,
        architecture=architecture,
        fingerprint=fingerprint,
        ready=standing.complete,
        version=standing.version,
        age_ms=age(standing, now_ms),
        rows=standing.rows,
        buckets=Buckets(standing.buckets, standing.copied, standing.unreachable),
        freshness=FreshnessMs(summary.p50_ms, summary.p99_ms, summary.count),
        trouble=standing.trouble,
    )
