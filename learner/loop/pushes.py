"""Sends pending deltas to buckets and handles their answers.

The marks of a bucket fence each push (`pserver/push_fence.py` has the rule). Each bucket has one
push in flight at a time. The push stays the same, nonce included, until it is answered, so it does
not matter whether the first attempt or a retry arrives. There are three answers:

    applied      every mark equals the end of the push: acknowledge it, fold it into the replica
    refused      a mark differs: another learner learned those examples in between, or the bucket
                 lost writes. Discard its pending deltas, go back to its marks, read again
    unreachable  the outcome is unknown: send the same push again
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.marks.topic_marks import offsets_in
from headrace.learner.loop.ports import LearnerClocks
from headrace.pserver.errors import Unreachable
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas, SourceReached, pack
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push

if TYPE_CHECKING:
    from headrace.learner.kernels.pending_deltas import PendingDeltas
    from headrace.learner.loop.cached_replica import CachedReplica
    from headrace.learner.loop.exchange import Exchange
    from headrace.pserver.replica.replica import Replica

log = logging.getLogger(__name__)

_MOST_CLICKS_TRACED = 256
"""Most click append times in an entry: enough for quantiles, bounded under a burst."""


class LearningProgress:
    """The progress of a learner in time, which its entries report as their age."""

    def __init__(self) -> None:
        self.event_ms = 0
        self.append_ms = 0
        self._append_ms: dict[str, int] = {}  # source -> greatest append time learned
        self._clicks: dict[str, list[tuple[int, int]]] = {}  # source -> clicks since the last push

    def learned(self, name: str, event_ms: int, append_ms: int) -> None:
        """Note that examples up to these times were learned from the source."""
        self.event_ms = max(self.event_ms, event_ms)
        self.append_ms = max(self.append_ms, append_ms)
        self._append_ms[name] = max(self._append_ms.get(name, 0), append_ms)

    def clicked(self, name: str, offset: int, append_ms: Sequence[int]) -> None:
        """Note that these clicks were learned from the batch at `offset`."""
        traced = self._clicks.setdefault(name, [])
        left = _MOST_CLICKS_TRACED - len(traced)
        traced += [(offset, int(appended)) for appended in append_ms[:left]]

    def reached(self, spans: Sequence[OffsetSpan]) -> list[SourceReached]:
        """Return the progress in `spans`, for an entry; each click goes into one entry only."""
        offsets = offsets_in({span.source: span.stop for span in spans})
        return [
            SourceReached(
                span.source,
                span.start,
                span.stop,
                self._append_ms.get(span.source, 0),
                # the click of a parked message is before the span: it arrived long ago
                [each for each in self._clicks.pop(span.source, []) if each[0] >= span.start],
            )
            for span in spans
            if span.source in offsets
        ]


@dataclass(slots=True)
class PushTotals:
    """Totals of pushes by outcome, and of what they carried."""

    applied: int = 0
    refused: int = 0
    unanswered: int = 0
    rows: int = 0
    reread: int = 0


class _PushInFlight(NamedTuple):
    push: Push
    deltas: RowDeltas
    header: EntryHeader


class Pushes:
    """Takes out pending deltas, sends them, and acts on the answers."""

    def __init__(
        self,
        exchange: Exchange,
        replica: Replica | CachedReplica,
        pending: PendingDeltas,
        cursors: Cursors,
        *,
        retry_interval_ms: int,
        clocks: LearnerClocks,
    ) -> None:
        self._exchange, self._replica = exchange, replica
        self._pending, self._cursors = pending, cursors
        self._retry_interval_ms = retry_interval_ms
        self._steady_ms, self._draw_nonce = clocks.steady_ms, clocks.draw_nonce
        self._flights: dict[int, _PushInFlight] = {}
        self._retry_at_ms: dict[int, int] = {}
        self._awaited: list[int] = []  # buckets of the round under way, in order
        self.unanswered: set[int] = set()
        """Buckets whose push was sent at least once without an answer."""
        self.log_bytes = np.zeros(replica.shape.buckets, np.int64)
        """Size of each bucket's log as last answered."""
        self.tally = PushTotals()

    @property
    def awaited(self) -> bool:
        """Whether a round is under way."""
        return bool(self._awaited)

    def flying(self, bucket: int) -> RowDeltas | None:
        """Return the deltas in flight to the bucket, or None."""
        flight = self._flights.get(bucket)
        return flight.deltas if flight else None

    def flying_ids(self) -> npt.NDArray[np.uint64]:
        """Return the ids of all rows in flight; shape (n,)."""
        flown = [flight.deltas.ids for flight in self._flights.values()]
        return np.concatenate(flown) if flown else np.zeros(0, np.uint64)

    def settled(self) -> bool:
        """Return whether nothing is pending or in flight."""
        return not self._flights and not any(
            self._cursors.spans(bucket) for bucket in range(self._replica.shape.buckets)
        )

    def send(self, progress: LearningProgress, before: Callable[[], None]) -> None:
        """Begin a round with every bucket that has something to send; none may be under way.

        `before` is called first if there is anything to send.
        """
        again = self._unanswered()
        spans = {
            bucket: covered
            for bucket in range(self._replica.shape.buckets)
            if bucket not in self._flights and (covered := self._cursors.spans(bucket))
        }
        if not again and not spans:
            return
        before()
        taken = self._pending.take(list(spans)) if spans else {}
        for bucket, covered in spans.items():
            deltas = taken[bucket]
            rows, width = deltas.values.shape
            reached = progress.reached(covered)
            header = EntryHeader(width, rows, progress.event_ms, progress.append_ms, reached)
            push = Push(bucket, covered, self._draw_nonce(), pack(header, deltas))
            self._flights[bucket] = _PushInFlight(push, deltas, header)
            self.tally.rows += rows
        self._round([*again, *spans])

    def send_again(self, before: Callable[[], None]) -> None:
        """Begin a round of retries that are due; see `send`."""
        again = self._unanswered()
        if again:
            before()
            self._round(again)

    def _unanswered(self) -> list[int]:
        now = self._steady_ms()
        return [b for b in self._flights if self._retry_at_ms.get(b, 0) <= now]

    def _round(self, buckets: list[int]) -> None:
        self._awaited = buckets
        self._exchange.send([self._flights[bucket].push for bucket in buckets])

    def handle_answers(self) -> set[str] | None:
        """Handle the answers of a round; return the sources that must be read again.

        None while the answers are awaited.
        """
        answers = self._exchange.receive() if self._awaited else None
        if answers is None:
            return None
        awaited, self._awaited = self._awaited, []
        again: set[str] = set()
        for bucket, answer in zip(awaited, answers, strict=True):
            if isinstance(answer, Unreachable):
                self.tally.unanswered += 1
                self.unanswered.add(bucket)
                self._retry_at_ms[bucket] = self._steady_ms() + self._retry_interval_ms
                log.warning("bucket %d did not answer, its push is kept: %s", bucket, answer)
                continue
            self.log_bytes[bucket] = answer.log_bytes
            self.unanswered.discard(bucket)
            flight = self._flights.pop(bucket)
            if answer.covers(flight.push.spans):
                self._applied(flight, answer)
            else:
                again.update(self._refused(flight, answer))
        return again

    def _applied(self, flight: _PushInFlight, answer: BucketAnswer) -> None:
        self.tally.applied += 1
        self._cursors.acknowledge(answer.bucket, flight.push.spans)
        if answer.nonce == flight.push.nonce:
            self._replica.fold_own(answer, flight.header, flight.deltas)
        # if the replica cannot fold it yet, it comes with the next poll like every entry
        self._pending.refresh(self._replica.table, flight.deltas.ids, None)

    def _refused(self, flight: _PushInFlight, answer: BucketAnswer) -> list[str]:
        bucket = answer.bucket
        self.tally.refused += 1
        log.info(
            "bucket %d refused a push of %s, its marks are %s: reading the examples again",
            bucket,
            flight.push.spans,
            dict(answer.marks),
        )
        sources = [span.source for span in flight.push.spans]
        return self._discard(bucket, answer, sources, flight.deltas.ids)

    def recheck(self, answer: BucketAnswer) -> list[str]:
        """Compare marks just read with the known ones; the bucket has nothing in flight.

        Returns the sources that must be read again. The answer to a push covers only the sources it
        names, and comes only if there is something to push. Without this check, a bucket that lost
        writes would lack them until then.
        """
        bucket = answer.bucket
        if self._cursors.agrees(bucket, answer.marks):
            return []
        log.info(
            "bucket %d went back to the marks %s: reading the examples again",
            bucket,
            dict(answer.marks),
        )
        return self._discard(bucket, answer, None, np.zeros(0, np.uint64))

    def undo(self) -> set[str]:
        """Drop all that is pending and not in flight; return the sources to read again."""
        again: set[str] = set()
        taken = self._pending.take(range(self._replica.shape.buckets))
        for bucket, deltas in taken.items():
            flight = self._flights.get(bucket)
            again.update(self._cursors.undo(bucket, flight.push.spans if flight else ()))
            flying = flight.deltas if flight else None
            self._pending.refresh(self._replica.table, deltas.ids, flying)
        self.tally.reread += len(again)
        return again

    def _discard(
        self,
        bucket: int,
        answer: BucketAnswer,
        sources: list[str] | None,
        flown: npt.NDArray[np.uint64],
    ) -> list[str]:
        pending = self._pending.take([bucket])[bucket]
        back = self._cursors.discard(bucket, answer.marks, sources)
        self._pending.refresh(self._replica.table, np.union1d(flown, pending.ids), None)
        self.tally.reread += len(back)
        return back
