"""The order of effects: what a learner does, step by step, between two polls of Kafka.

`Learner.step` is the whole life of a learner; everything else here is one of its numbered steps.
The order is what makes the promise hold: scores are delivered before the push that covers their
examples, so no example is marked as learned whose score is lost; gains and marks change in one call
of the store, so no example is applied twice or not at all; offsets are committed to Kafka last and
for dashboards only, since Kafka's offsets cannot be atomic with the store.

The learner owns no truth. Everything it holds can be lost at any line: on start it reads the marks,
seeks to the lowest and lets every bucket take only what it lacks.

Clients, clocks, threads and dice are handed in; the simulation hands in its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import orjson

from headrace.ingest.dead_letters import pack as pack_letter
from headrace.ingest.examples import Kind
from headrace.ingest.kafka import Record, Source
from headrace.learner.errors import NotPulled
from headrace.learner.kernels import PendingGains, view_of
from headrace.learner.loop.batch_guard import quarantine_letter
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.pacing import AT_EASE
from headrace.learner.loop.pushes import LearningProgress, Pushes
from headrace.learner.loop.row_prefetcher import RowPrefetcher
from headrace.learner.loop.scores import Scores
from headrace.learner.loop.scores import pack as pack_scores
from headrace.pserver import Unreachable
from headrace.pserver.replica import Copied, Deleted, Folded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from headrace.ingest.examples import Examples
    from headrace.ingest.features import FieldSet
    from headrace.ingest.kafka import Reader, Writer
    from headrace.learner.loop.batch_guard import BatchGuard
    from headrace.learner.loop.example_queue import ExampleBatch
    from headrace.learner.loop.pacing import LearnerPacing
    from headrace.learner.loop.pushes import Exchange
    from headrace.learner.models import SyncGroup, TrainableModel
    from headrace.pserver import Store
    from headrace.pserver.replica import Change, Replica

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearnerTotals:
    """Running totals of what one learner learned, for its metrics."""

    examples: int = 0
    clicks: int = 0
    scored: int = 0
    score_sum: float = 0.0
    throttled: bool = False
    held_batches: int = 0
    held_examples: int = 0
    """Passed over, since they would have broken the model."""


class Learner:
    """Learns the examples of its partitions, and pushes what its rows gained.

    `replica` must be complete. Not safe for use from several threads.
    """

    def __init__(
        self,
        *,
        reader: Reader,
        scores: Writer,
        score_topic: str,
        store: Store,
        exchange: Exchange,
        replica: Replica | CachedReplica,
        model: TrainableModel,
        fields: FieldSet,
        pace: LearnerPacing,
        now_ms: Callable[[], int],
        draw_nonce: Callable[[], bytes],
        rest: Callable[[float], None],
        accept_topic: str = "",
        guard: BatchGuard | None = None,
        dead_letters: str = "",
        rounds: SyncGroup | None = None,
    ) -> None:
        """`accept_topic`: see ExampleQueue. `guard` holds batches back, by a letter to
        `dead_letters`.

        `rounds`: of a model whose layers are stepped by several learners together.
        """
        self._rounds = rounds
        self._scores, self._score_topic = scores, score_topic
        self._store, self.replica, self._model = store, replica, model
        self._pace, self._now_ms, self._rest = pace, now_ms, rest
        self._guard, self._dead_letters = guard, dead_letters
        self._shape = replica.shape
        self.view = view_of(self._shape.width)
        self._pending = PendingGains(self.view, self._shape)
        self._pending.refresh(replica.table, replica.table.ids.copy(), None)
        cursors = Cursors()
        self._intake = ExampleQueue(
            reader,
            cursors,
            fields,
            order_wait_ms=pace.order_wait_ms,
            ahead_limit=pace.ahead_limit,
            now_ms=now_ms,
            accept_topic=accept_topic,
        )
        self._pushes = Pushes(
            exchange,
            replica,
            self._pending,
            cursors,
            retry_interval_ms=pace.retry_interval_ms,
            now_ms=now_ms,
            draw_nonce=draw_nonce,
        )
        self.bounded: RowPrefetcher | None = None
        if isinstance(replica, CachedReplica):
            held = replica, self.view, self._pending, self._pushes
            self.bounded = RowPrefetcher(*held, self._follow, pace.retry_interval_ms)
        self.progress = LearningProgress()
        self.figures = LearnerTotals()
        self.tally = self._pushes.tally
        self._recheck_at_ms = 0
        self._pushed_at_ms = now_ms()
        self._fold_at_ms = self._pushed_at_ms + pace.push_interval_ms
        self._usual_ms = pace.staleness.interval_ms or pace.push_interval_ms
        self._interval_ms = self._usual_ms
        self._unsent = 0  # examples learned since the last push

    def step(self, timeout_s: float) -> bool:
        """Do everything once; return whether anything was learned.

        1. poll    take in what came from Kafka: batches, ends, partitions gained and lost
        2. marks   find where a gained partition begins: at the lowest mark of all buckets
        3. rows    fold what other learners pushed, so that the view is present and fresh; compare
                   marks now and then, in case a bucket went back
        4. predict score each example before learning from it
        5. learn   add to the view and to the pending gains, where the bucket's cursor allows it
        6. score   hand the scores to Kafka
        7. push    if due: wait until Kafka has the scores, see that the topic was not made again,
                   then send gains with their spans
        8. answer  applied, refused (discard, read again) or unknown (send again)
        9. commit  offsets, for lag dashboards
        """
        waits = self._pushes.awaited or (self._intake.ready() and not self._full())
        if self._rounds is not None and self._rounds.busy:
            timeout_s = 0.0  # others wait for us in the next round
        self._intake.poll(min(timeout_s, 0.002) if waits else timeout_s)
        self._find_marks()
        self._fold()
        self._recheck()
        throttled = self._throttled()
        learned = self._learn_some()
        if self._rounds is not None and not learned:
            self._rounds.idle(self.view)
        if self._due():
            self._push(more=not throttled)
        self._answer()
        self._set_pace()
        return learned

    def finish(self, deadline_ms: int) -> bool:
        """Push what is pending and wait for the answers; return whether all was acknowledged."""
        while not self._pushes.settled():
            if self._now_ms() >= deadline_ms:
                return False
            if not self._pushes.awaited:
                self._push()
            self._answer()
            self._rest(0.002)
        return True

    def _find_marks(self) -> None:
        if not self._intake.unmarked:
            return
        answers = self._store.marks(range(self._shape.buckets))
        known = [answer for answer in answers if not isinstance(answer, Unreachable)]
        if len(known) == len(answers):  # a bucket whose marks are unknown can have no cursor
            self._intake.begin(known)

    def _fold(self) -> None:
        # not while a push is awaited: its entry would come back as if it were somebody else's
        now = self._now_ms()
        if self._pushes.awaited or now < self._fold_at_ms:
            return
        self._fold_at_ms = now + self._usual_ms
        self._follow(self.replica.poll())
        if self.replica.compact() is not None:
            self._pending.compact()

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case Folded(bucket=bucket, gains=gains):
                    self._refresh(bucket, gains.ids)
                case Deleted(bucket=bucket, ids=ids):
                    self._refresh(bucket, ids[self.view.find(ids) >= 0])
                case Copied(bucket=bucket):
                    known = np.union1d(self.view.ids, self.replica.table.ids)
                    self._refresh(bucket, known[self._shape.bucket_of(known) == bucket])
                    self._recheck_at_ms = 0

    def _recheck(self) -> None:
        # while a push is under way its answer speaks for the sources it names, but for no others
        now = self._now_ms()
        if self._pushes.awaited or now < self._recheck_at_ms:
            return
        self._recheck_at_ms = now + self._pace.recheck_interval_ms
        buckets = range(self._shape.buckets)
        quiet = [bucket for bucket in buckets if self._pushes.flying(bucket) is None]
        again: set[str] = set()
        for answer in self._store.marks(quiet):
            if not isinstance(answer, Unreachable):
                again.update(self._pushes.recheck(answer))
        self._read_again(again)  # once, however many buckets went back

    def _read_again(self, again: set[str]) -> None:
        if again and self._rounds is not None:
            # the steps of these examples were everybody's, and cannot be taken back
            self._rounds.leave(f"examples of {', '.join(sorted(again))} are to be read again")
        self._intake.read_again(again)

    def _refresh(self, bucket: int, ids: npt.NDArray[np.uint64]) -> None:
        self._pending.refresh(self.replica.table, ids, self._pushes.flying(bucket))

    def _learn_some(self) -> bool:
        """Learn what is there, for at most a push interval; return whether there was anything."""
        until_ms = self._now_ms() + self._pace.push_interval_ms
        learned = False
        while not self._full() and (batch := self._intake.next()) is not None:
            if self.bounded and not self.bounded.prepare(batch.examples, self._now_ms()):
                self._intake.put_back(batch)
                break
            learned = True
            self._learn(batch)
            self._unsent += len(batch.examples)
            if self._due() or self._now_ms() >= until_ms:
                break
        return learned

    def _learn(self, batch: ExampleBatch) -> None:
        examples, guard = batch.examples, self._guard
        if guard is not None:
            reason = guard.reason(batch.name, batch.offset, examples)
            if reason is None and self._rounds is not None:
                reason = self._rehearse(self._rounds, guard, batch)
            if reason is not None:
                self._intake.learned(batch)
                if guard.tell(batch.name, batch.offset):
                    self._report(batch, reason)
                return
        active = self._intake.active(batch)
        self.view.reserve(self._model.rows_needed(examples))
        try:
            scores = self._model.learn(self.view, self._pending.reserve(), active, examples)
        except NotPulled:
            self._undo({batch.name})
            return
        if guard is not None and self._rounds is None:
            largest = self._pending.largest() if guard.careful else 0.0
            reason = guard.judge(batch.name, batch.offset, examples, scores, largest)
            if reason is not None:
                if not guard.careful and guard.exploded(self._pending.largest()):
                    guard.careful = True  # it may be one before this that broke the model
                else:
                    guard.hold(batch.name, batch.offset, reason)
                self._undo({batch.name})
                return
        self._intake.learned(batch)
        self._send_scores(batch.source, examples, scores)
        self.figures.examples += len(examples)
        self.figures.clicks += int(examples.labels.sum())
        event_ms, append_ms = int(examples.event_ms.max()), int(examples.append_ms.max())
        self.progress.learned(batch.name, event_ms, append_ms)
        clicked = examples.append_ms[examples.kinds == Kind.CLICKED]
        self.progress.clicked(batch.name, batch.offset, clicked.tolist())

    def _rehearse(self, rounds: SyncGroup, guard: BatchGuard, batch: ExampleBatch) -> str | None:
        """Return why a batch may not be brought to a round: what all have stepped stays."""
        name, offset, examples = batch.name, batch.offset, batch.examples
        scores, largest = rounds.rehearse(self.view, self._intake.active(batch), examples)
        reason = guard.judge(name, offset, examples, scores, largest)
        if reason is not None:
            guard.hold(name, offset, reason)
        return reason

    def _undo(self, again: set[str]) -> None:
        """Let go of what was learned since the last push, and read it and these sources again."""
        self._read_again(self._pushes.undo() | again)

    def _report(self, batch: ExampleBatch, reason: str) -> None:
        """Count a batch held back, and write a letter about it."""
        examples = batch.examples
        self.figures.held_batches += 1
        self.figures.held_examples += len(examples)
        source = batch.source.topic, batch.source.partition
        log.error("%s/%d at offset %d held back: %s", *source, batch.offset, reason)
        names = orjson.dumps(examples.impression_ids.to_pylist())
        record = Record(batch.source, batch.offset, int(examples.append_ms.max()), names)
        letter = pack_letter(record, quarantine_letter(len(examples), reason))
        self._scores.send(Source(self._dead_letters, 0), letter)

    def _send_scores(
        self, source: Source, examples: Examples, scores: npt.NDArray[np.float64]
    ) -> None:
        scored = np.flatnonzero(~np.isnan(scores))
        if not scored.shape[0]:
            return
        batch = Scores(
            examples.impression_ids.take(scored),
            examples.request_ids.take(scored),
            examples.event_ms[scored],
            scores[scored],
        )
        self._scores.send(Source(self._score_topic, source.partition), pack_scores(batch))
        self.figures.scored += scored.shape[0]
        self.figures.score_sum += float(batch.scores.sum())

    def _full(self) -> bool:
        """Whether nothing more may be learned before it is pushed."""
        most = self._pace.staleness.examples
        if self.figures.throttled:
            most = self._pace.unsent_limit if self._pace.staleness == AT_EASE else 0
        return most is not None and self._unsent >= most

    def _due(self) -> bool:
        elapsed_ms = self._now_ms() - self._pushed_at_ms
        return not self._pushes.awaited and (self._full() or elapsed_ms >= self._interval_ms)

    def _push(self, *, more: bool = True) -> None:
        """Send what is pending; or, without `more`, only what was sent and not answered."""
        if not more:
            self._pushes.send_again(before=self._seal)
            return
        self._recheck_at_ms = 0
        self._pushed_at_ms, self._unsent = self._now_ms(), 0
        guard = self._guard
        if guard is not None and (why := guard.exploded(self._pending.largest())):
            if self._rounds is not None:
                self._rounds.leave(why)  # a rehearsal did not show it: better none than this
            # some batch since the last push: read again, and looked at one by one
            guard.careful = True
            self._undo(set())
        self._pushes.send(self.progress, before=self._seal)

    def _seal(self) -> None:
        """See that what was learned may be pushed: its scores are kept, and its topic is ours."""
        self._scores.flush()
        self._intake.check_topics()

    def _answer(self) -> None:
        again = self._pushes.handle_answers()
        if again is not None:
            if self._pace.staleness.examples is not None:
                self._fold_at_ms = 0  # before anything more is learned
            self._read_again(again)
            self._intake.commit()

    def _throttled(self) -> bool:
        """Whether logs have grown so far that learning waits for keepers."""
        log_bytes = self._pushes.log_bytes
        full = np.flatnonzero(log_bytes > self._pace.log_bytes_limit)
        if full.shape[0]:
            for answer in self._store.marks(full.tolist()):
                if not isinstance(answer, Unreachable):
                    log_bytes[answer.bucket] = answer.log_bytes
        throttled = bool((log_bytes > self._pace.log_bytes_limit).any())
        if throttled and not self.figures.throttled:
            log.warning(
                "a bucket's log holds %d bytes, limit %d: waiting for `headrace pserver keep`",
                log_bytes.max(),
                self._pace.log_bytes_limit,
            )
        self.figures.throttled = throttled
        return throttled

    def _set_pace(self) -> None:
        goal = self._usual_ms
        if self._pace.staleness.interval_ms is None and self._intake.behind():
            goal = self._pace.backlog_interval_ms
        self._interval_ms = min(goal, max(1, 2 * self._interval_ms))
