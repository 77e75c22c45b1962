"""How stale a learner may let the others be: the one setting that several learners share work by.

What a learner has learned is nobody else's until it is pushed, and what others pushed is not its
own until it folds that. Both happen together, and how far apart is set here: after every batch,
after so many examples, or after so many milliseconds. The gradients of k learners are then taken
where at most k times as much is missing.

Waiting is part of it. With a number of examples a learner that has as many unsent, and a round of
pushes still under way, learns nothing until the answers are there; a bucket that does not answer is
not waited for beyond its timeout, and lacks more meanwhile. With a time, what is learned while
answers are awaited comes on top. Without a setting a learner pushes when it likes, fresh while
there is little to do and in large pieces while there is much.

How far a learner may run ahead of the store, and how it shares its time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"batch|([1-9]\d{0,8})(ms)?")


class BadPushInterval(ValueError):
    """The text is no such setting."""


@dataclass(frozen=True, slots=True)
class PushInterval:
    """A bound, of one kind or of none."""

    examples: int | None = None
    """Learned and not sent; a batch is never cut, so 1 means every batch."""
    interval_ms: int | None = None
    """Between two rounds of pushes."""

    def __str__(self) -> str:
        if self.examples is not None:
            return "every batch" if self.examples == 1 else f"every {self.examples} examples"
        return "at ease" if self.interval_ms is None else f"every {self.interval_ms} ms"


AT_EASE = PushInterval()
"""No bound."""


def parse_push_interval(text: str) -> PushInterval:
    """Return the setting of `batch`, `20000` (examples) or `50ms`; empty: no bound.

    Raises BadPushInterval.
    """
    if not text:
        return AT_EASE
    found = _TEXT.fullmatch(text)
    if found is None:
        raise BadPushInterval(
            "expected batch, a number of examples such as 20000, or a time such as 50ms, "
            f"found {text!r}"
        )
    if text == "batch":
        return PushInterval(examples=1)
    number, unit = found.groups()
    return PushInterval(interval_ms=int(number)) if unit else PushInterval(examples=int(number))


@dataclass(frozen=True, slots=True)
class LearnerPacing:
    """Times, sizes and counts that bound a learner."""

    push_interval_ms: int = 50
    """Between two pushes of a bucket: the learner's share of freshness."""
    backlog_interval_ms: int = 400
    """The same while batches pile up: longer, since a hot row then costs one addition a push."""
    staleness: PushInterval = AT_EASE
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
