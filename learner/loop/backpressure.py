"""The reasons for which a learner waits: full logs, silent buckets, and too much that is parked.

Kafka holds the examples meanwhile, so nothing is lost. While logs are full, the learner pushes
nothing; in the other two cases, it learns nothing new.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from headrace.learner.loop.pacing import LearnerPacing
from headrace.pserver.errors import Unreachable
from headrace.pserver.store import Store

if TYPE_CHECKING:
    from headrace.learner.loop.outputs import LearnerTotals
    from headrace.learner.loop.pushes import Pushes

log = logging.getLogger(__name__)


class Backpressure:
    """Decides whether a learner must wait, and keeps the figures that say so."""

    def __init__(
        self,
        store: Store,
        pushes: Pushes,
        pace: LearnerPacing,
        figures: LearnerTotals,
    ) -> None:
        self._store, self._pushes, self._pace, self._figures = store, pushes, pace, figures

    def throttled(self) -> bool:
        """Return whether a log has grown so long that pushes wait for keepers."""
        log_bytes = self._pushes.log_bytes
        full = np.flatnonzero(log_bytes > self._pace.log_bytes_limit)
        if full.shape[0]:
            for answer in self._store.marks(full.tolist()):
                if not isinstance(answer, Unreachable):
                    log_bytes[answer.bucket] = answer.log_bytes
        throttled = bool((log_bytes > self._pace.log_bytes_limit).any())
        if throttled and not self._figures.throttled:
            log.warning(
                "the log of a bucket has %d bytes, limit %d: waiting for a keeper (pserver keep)",
                log_bytes.max(),
                self._pace.log_bytes_limit,
            )
        self._figures.throttled = throttled
        self._figures.log_fill = float(log_bytes.max() / self._pace.log_bytes_limit)
        return throttled

    def learns_nothing_new(self) -> bool:
        """Return whether new examples must wait."""
        return self.waits_for_buckets() or self._parks_too_much()

    def waits_for_buckets(self) -> bool:
        """Return whether too much was learned since a bucket stopped answering.

        Its deltas stay in memory, and its next push carries them all. When a push is due does not
        depend on this: the other buckets get what is pending, and the silent one its push again.
        """
        figures, limit = self._figures, self._pace.unanswered_limit
        if not self._pushes.unanswered:
            figures.unanswered_examples = 0
        waiting = figures.unanswered_examples >= limit
        if waiting and not figures.waiting_for_buckets:
            log.warning(
                "learned %d examples while %d of %d buckets did not answer, limit %d: waiting for "
                "their shard; Kafka holds the examples meanwhile",
                *(figures.unanswered_examples, len(self._pushes.unanswered)),
                *(self._pushes.log_bytes.shape[0], limit),
            )
        elif figures.waiting_for_buckets and not waiting:
            log.warning("all buckets answer again: learning continues")
        figures.waiting_for_buckets = waiting
        return waiting

    def _parks_too_much(self) -> bool:
        """Return whether no more may be parked, so that a message in doubt could not be passed."""
        waiting = len(self._figures.parked) >= self._pace.parked_limit
        if waiting and not self._figures.waiting_for_parked:
            log.error(
                "%d messages are parked, limit %d: learning waits until they are learned or "
                "dropped (headrace learner parked); Kafka holds the examples meanwhile",
                *(len(self._figures.parked), self._pace.parked_limit),
            )
        self._figures.waiting_for_parked = waiting
        return waiting
