"""Decides how far in event time the sources of a reader may be taken.

Sources are delivered at different speeds. If a process took what has arrived, event time would jump
back and forth between them, which costs a model accuracy. So an event is taken once no source may
still deliver an earlier one. Data decide which sources may:

- A source that is **not at its end** has more. The next may be as early as the last one delivered.
- A source **at its end** may get more at any moment. Whether this may be earlier follows from the
  delay from an event to its append. While event time goes no faster than Kafka's clock, an event is
  as late as others were before, and the other sources have been read up to the same moment. So it
  is taken at once: this is live traffic. In history that is appended or joined faster than it
  happened, delays shrink with every event. There, the writer passes every source on to the event
  time that it has reached (ticks of a replay, empty batches of a joiner), and an event waits until
  all sources have reached its time.

Wall time bounds the waiting, because a source may have lost its leader, or its writer. Beyond the
bound, the others go on without the source until it delivers something.

Pure bookkeeping: nothing here reads or waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.ingest.kafka.protocols import Source

log = logging.getLogger(__name__)

_NEVER, _FOREVER = -(1 << 61), 1 << 61

_LIVE_MS = 5_000
"""A source whose last record is older than that, compared with the event that waits for it, is in a
backlog: an election of a leader takes longer than this, live traffic does not."""

_LIVE_SLACK_MS = 100
"""Live events may be this much early. Otherwise each would wait some milliseconds for the answer
that another source has reached its end."""


@dataclass(frozen=True, slots=True)
class OrderPatience:
    """Wall times for which a source that delivers nothing holds up the others."""

    order_wait_ms: int = 1_000
    """Live, or at its end. A fetch, or the rest of a transaction, takes less even on a busy
    machine. Live traffic waits this long only if the leader of a partition died."""
    backlog_wait_ms: int = 30_000
    """Below its end in a backlog: longer than Kafka takes to elect a leader. The source certainly
    has more, so its order is worth waiting for, and nothing in a backlog is urgent."""


class NextEvent(NamedTuple):
    """The earliest event that was delivered and not taken."""

    event_ms: int
    append_ms: int
    least_delay_ms: int
    """Least time from an event to its append, of all events taken so far."""

    @property
    def live(self) -> bool:
        """Whether it is as late as others before it."""
        return self.event_ms <= self.append_ms - self.least_delay_ms


class OrderBounds(NamedTuple):
    """The event times up to which may be taken."""

    until_ms: int
    """Of every event: sources that are not at their end have not reached more."""
    at_end_ms: int
    """Of an event that is not live: sources at their end have not reached more."""


UNBOUNDED = OrderBounds(_FOREVER, _FOREVER)


@dataclass(slots=True)
class _Progress:
    """The delivered part of a source."""

    reached_ms: int = _NEVER
    complete_ms: int = _NEVER
    append_ms: int = 0
    ended_ms: int | None = None
    """Wall time at which it was at its end; None while it has more."""
    holding_since_ms: int | None = None
    passed: bool = False
    """Whether the others went on without it."""


class SourceOrder:
    """The sources of one reader. Its clock is steady; its origin is arbitrary."""

    def __init__(self, patience: OrderPatience) -> None:
        self._patience = patience
        self._sources: dict[Source, _Progress] = {}

    def begin(self, sources: Iterable[Source]) -> None:
        """Add sources from which nothing was delivered, or start them again."""
        for source in sources:
            self._sources[source] = _Progress()

    def forget(self, sources: Iterable[Source]) -> None:
        """Drop revoked sources."""
        for source in sources:
            self._sources.pop(source, None)

    def delivered(
        self, source: Source, reached_ms: int, append_ms: int, complete_ms: int | None = None
    ) -> None:
        """Note records of a source.

        reached_ms: event time of the last; more of the same writer may follow it. append_ms: its
        append. complete_ms: the writer adds nothing before this event time (default: reached_ms);
        it counts at the end of the source, where the last record of the writer's transaction is.
        """
        progress = self._sources[source]
        complete_ms = reached_ms if complete_ms is None else complete_ms
        progress.reached_ms = max(progress.reached_ms, reached_ms)
        progress.complete_ms = max(progress.complete_ms, complete_ms)
        progress.append_ms = max(progress.append_ms, append_ms)
        progress.ended_ms = progress.holding_since_ms = None
        progress.passed = False

    def ended(self, source: Source, now_ms: int) -> None:
        """Note that every record of a source was delivered. The next one revokes this."""
        self._sources[source].ended_ms = now_ms

    def bounds(self, following: NextEvent | None, now_ms: int) -> OrderBounds:
        """Return how far events may be taken. following: the next one; None: none waits."""
        until_ms = at_end_ms = _FOREVER
        slack_ms = _LIVE_SLACK_MS if following is not None and following.live else 0
        for source, progress in self._sources.items():
            at_end = progress.ended_ms is not None
            reached_ms = progress.reached_ms
            if progress.ended_ms is not None:
                passed_ms = now_ms - progress.ended_ms
                reached_ms = max(reached_ms, progress.complete_ms) + passed_ms
            else:
                reached_ms += slack_ms
            if following is None or reached_ms >= following.event_ms:
                progress.holding_since_ms = None
            elif self._gives_up(source, progress, following, now_ms):
                continue
            if at_end:
                at_end_ms = min(at_end_ms, reached_ms)
            else:
                until_ms = min(until_ms, reached_ms)
        return OrderBounds(until_ms, at_end_ms)

    def _gives_up(
        self, source: Source, progress: _Progress, following: NextEvent, now_ms: int
    ) -> bool:
        """Return whether a source has held up the next event for too long."""
        at_end = progress.ended_ms is not None
        if at_end and following.live:
            return False  # it holds up nothing
        if progress.holding_since_ms is None:
            progress.holding_since_ms = now_ms
        near = following.live and following.append_ms - progress.append_ms <= _LIVE_MS
        wait_ms = self._patience.order_wait_ms if at_end or near else self._patience.backlog_wait_ms
        if now_ms - progress.holding_since_ms < wait_ms:
            return False
        if not at_end and not progress.passed:
            log.warning(
                "%s/%d: expected the next of its records, got none for %.1f s: going on without "
                "them, in another order of event time. See whether its leader is down",
                *(source.topic, source.partition, (now_ms - progress.holding_since_ms) / 1000),
            )
            progress.passed = True
        return True
