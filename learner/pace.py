"""How far a learner may run ahead of the store, and how it shares its time."""

from __future__ import annotations

from dataclasses import dataclass

from learner.staleness import AT_EASE, Staleness


@dataclass(frozen=True, slots=True)
class Pace:
    """Times, sizes and counts that bound a learner."""

    push_interval_ms: int = 50
    """Between two pushes of a bucket: the learner's share of freshness."""
    backlog_interval_ms: int = 400
    """The same while batches pile up: longer, since a hot row then costs one addition a push."""
    staleness: Staleness = AT_EASE
    """Bounds what is learned between two pushes. A time is in the place of the two intervals."""
    log_bytes_limit: int = 64 << 20
    """Unfolded bytes of a bucket beyond which nothing is pushed until keepers made room: before
    memory ends."""
    unsent_limit: int = 65_536
    """Examples that are learned meanwhile, unless staleness is bounded. They are pushed as one, and
    a row that many of them name once: the slower keepers are, the less there is to fold."""
    order_wait_ms: int = 200
    """How long a partition with nothing to read holds up the others, in wall time."""
    ahead_limit: int = 32
    """Batches of one partition held in memory; beyond it the partition is paused."""
    recheck_interval_ms: int = 1000
    """How often all marks are compared with what is known: the longest that a failover which lost
    acknowledged writes goes unnoticed where its bucket gets no push."""
    retry_interval_ms: int = 200
    """Before the same push is sent again to a bucket that did not answer."""
