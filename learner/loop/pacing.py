"""Settings of a learner's times, sizes and counts, and of its staleness among several learners.

Other learners see what a learner learned once it is pushed; it sees what others pushed once it
folds that. Both happen together, and `PushInterval` sets how often: after every batch, after a
number of examples, or after a number of milliseconds. The gradients of k learners are then taken
where at most k times as much is missing.

With a number of examples, a learner also waits: once it has that many unsent while a round of
pushes is in flight, it learns nothing until the answers arrive. It waits for a bucket no longer
than the timeout of that bucket, which then lacks more examples, up to `unanswered_limit`. With a
time, the learner continues to learn while it awaits answers. Without a setting, a learner pushes
often while its load is low, and in larger pieces while it has a backlog and no other learner
pushes.
"""

import re
from dataclasses import dataclass, field

from headrace.ingest.kafka.reading.source_order import OrderPatience

_TEXT = re.compile(r"batch|([1-9]\d{0,8})(ms)?")


class BadPushInterval(ValueError):
    """The text is not a push interval."""


@dataclass(frozen=True, slots=True)
class PushInterval:
    """A bound on what is learned between two pushes, by number or by time, or none."""

    examples: int | None = None
    """Examples learned and not sent; merged messages are never cut, so 1 means every window."""
    interval_ms: int | None = None
    """Milliseconds between two rounds of pushes."""

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
            f"got {text!r}"
        )
    if text == "batch":
        return PushInterval(examples=1)
    number, unit = found.groups()
    return PushInterval(interval_ms=int(number)) if unit else PushInterval(examples=int(number))


@dataclass(frozen=True, slots=True)
class LearnerPacing:
    """The times, sizes and counts that bound a learner."""

    push_interval_ms: int = 50
    """Milliseconds between two pushes of a bucket: the learner's part of the end-to-end delay."""
    backlog_interval_ms: int = 400
    """The same while batches queue up and no other learner pushes: longer, because a hot row costs
    one addition a push."""
    others_ms: int = 2_000
    """Milliseconds for which a push of another learner counts as recent. Learners that catch up
    together at the longer interval miss most of what the others learn."""
    staleness: PushInterval = AT_EASE
    """Bounds what is learned between two pushes. A time replaces the two intervals above."""
    log_bytes_limit: int = 64 << 20
    """Unfolded bytes of a bucket beyond which nothing is pushed until keepers fold: backpressure
    before the store runs out of memory."""
    unsent_limit: int = 65_536
    """Examples learned while keepers are awaited, unless staleness is bounded. They are pushed at
    once, with one addition for a row that many of them name: slow keepers get less to fold."""
    unanswered_limit: int = 262_144
    """Examples learned while a bucket does not answer, for example in a failover. Their deltas for
    that bucket wait in memory for its next push. At 10,000 a second the limit is reached after
    26 s, longer than a failover. Then learning waits, and Kafka holds the examples."""
    window_examples: int = 8192
    """Examples of several partitions merged by event time at once: more wait longer for a push."""
    least_window_examples: int = 2048
    """The same with a bound on examples, if the bound is smaller. Smaller windows do not merge the
    messages of one time: on a week of news with 8 partitions, that cost 0.005 of AUC."""
    patience: OrderPatience = field(default_factory=OrderPatience)
    """For partitions that may have earlier examples and deliver nothing."""
    ahead_limit: int = 32
    """Batches of one partition held in memory; beyond it the partition is paused."""
    parked_interval_ms: int = 1000
    """Milliseconds between two parked messages that are tried and stay parked: a few percent of the
    time, since scoring a message takes some ten milliseconds."""
    parked_limit: int = 256
    """Messages parked by one learner; with as many, it learns nothing new. A bucket stores a mark
    for each, and the learner reads all marks after every push."""
    recheck_interval_ms: int = 1000
    """Milliseconds between two comparisons of all marks. A failover that lost acknowledged writes
    is noticed after this time at the latest, also in a bucket that gets no push."""
    identity_interval_ms: int = 30_000
    """Milliseconds between two checks of topic ids, besides those before pushes: a topic recreated
    with as many messages as were learned looks like one without new messages."""
    retry_interval_ms: int = 200
    """Milliseconds before a push is sent again to a bucket that did not answer."""


class PushTimer:
    """Sets the time until a learner's next push, by its load and by the pushes of others."""

    def __init__(self, pace: LearnerPacing, now_ms: int) -> None:
        self.usual_ms = pace.staleness.interval_ms or pace.push_interval_ms
        """The interval while no batches queue up, also between two folds."""
        self._backlog_ms = (
            pace.backlog_interval_ms if pace.staleness.interval_ms is None else self.usual_ms
        )
        self._others_ms = pace.others_ms
        self._interval_ms = self.usual_ms
        self._pushed_at_ms = now_ms
        self._others_until_ms = now_ms + pace.others_ms  # others may have pushed before the start

    def due(self, now_ms: int) -> bool:
        """Return whether the time since the last push has passed."""
        return now_ms - self._pushed_at_ms >= self._interval_ms

    def pushed(self, now_ms: int) -> None:
        """Note a push of this learner."""
        self._pushed_at_ms = now_ms

    def others_pushed(self, now_ms: int) -> None:
        """Note that a push of another learner was folded."""
        self._others_until_ms = now_ms + self._others_ms

    def adjust(self, now_ms: int, *, behind: bool) -> None:
        """Set the interval; it at most doubles each time. behind: whether batches queue up."""
        alone = now_ms >= self._others_until_ms
        goal = self._backlog_ms if behind and alone else self.usual_ms
        self._interval_ms = min(goal, max(1, 2 * self._interval_ms))
