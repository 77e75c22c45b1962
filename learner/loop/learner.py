"""The learner: what it does between two polls of Kafka, step by step.

`Learner.step` is a learner's whole life; the rest of this file is its numbered steps. Their order
is what guarantees exactly once. Scores are delivered before the push that covers their examples, so
no example is marked as learned while its score is lost. Deltas and marks change in one call of the
store, so no example is applied twice or skipped. Offsets are committed to Kafka last, and for
dashboards only: Kafka's offsets cannot change atomically with the store.

The store and Kafka have all state that a learner needs, so it can die at any line: on start it
reads the marks of all buckets, seeks to the lowest, and lets each bucket take only what it lacks.

Connections, clocks and random numbers are passed in (learner.loop.ports), as are the parts that
only some learners have, each with a null object: a guard, a group of learners that step together, a
cache of rows in place of all of them. The simulation passes its own.
"""

import logging
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from headrace.ingest.examples.batch import Examples, Kind, unpack
from headrace.ingest.examples.damaged_messages import DamagedMessages
from headrace.ingest.features.fields import FieldSet
from headrace.learner.errors import NotPulled
from headrace.learner.inputs.slates import slate_ends
from headrace.learner.kernels.pending_deltas import PendingDeltas, view_of
from headrace.learner.loop.backpressure import Backpressure
from headrace.learner.loop.cached_replica import CachedReplica
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.guard.batch_guard import BatchGuard, NoGuard, Unlearnable, Verdict
from headrace.learner.loop.merging import ExampleBatch, MergedBatches, QuarantinedExamples
from headrace.learner.loop.outputs import LearnerTotals
from headrace.learner.loop.pacing import AT_EASE, LearnerPacing, PushTimer
from headrace.learner.loop.parked_examples import ParkedExamples
from headrace.learner.loop.ports import LearnerClocks, LearnerPorts
from headrace.learner.loop.pushes import LearningProgress, Pushes
from headrace.learner.loop.row_prefetcher import AllRows, RowPrefetcher
from headrace.learner.models.protocols import TrainableModel
from headrace.learner.models.sync_group import SyncGroup
from headrace.pserver.errors import Unreachable
from headrace.pserver.replica.replica import BucketRecopied, Change, Deleted, Folded, Replica

log = logging.getLogger(__name__)


class Learner:
    """Learns the examples of its partitions, and pushes what its rows gained.

    Not safe for use from several threads.
    """

    def __init__(
        self,
        ports: LearnerPorts,
        replica: Replica | CachedReplica,
        model: TrainableModel,
        fields: FieldSet,
        pace: LearnerPacing,
        clocks: LearnerClocks | None = None,
        guard: BatchGuard | None = None,
        group: SyncGroup | None = None,
    ) -> None:
        """`replica` must be complete. `group`: of a model whose layers several learners step."""
        clocks = clocks or LearnerClocks()
        self._store, self.replica, self._model, self._pace = ports.store, replica, model, pace
        self._steady_ms, self._sleep = clocks.steady_ms, clocks.sleep
        self._guard, self._group = guard or NoGuard(), group or SyncGroup()
        self._group.inspect_with(self._guard.inspect)
        self._outputs = ports.outputs
        self._shape = replica.shape
        self.view = view_of(self._shape.width)
        self._pending = PendingDeltas(self.view, self._shape)
        self._pending.refresh(replica.table, replica.table.ids.copy(), None)
        cursors = Cursors()
        self.messages = DamagedMessages(ports.skip_damaged)
        decode = partial(self.messages.decoded, decode=partial(unpack, fields=fields))
        self.intake = ExampleQueue(
            ports.reader,
            cursors,
            decode,
            label_delay_ms=fields.label.behind_ms,
            pace=pace,
            steady_ms=clocks.steady_ms,
            accept_topic=ports.accept_topic,
            accept_gap=ports.accept_gap,
        )
        self.parked = ParkedExamples(
            self.intake,
            cursors,
            self._guard,
            ports.fetcher,
            decode,
            retry_interval_ms=pace.parked_interval_ms,
            limit=pace.parked_limit,
        )
        self._pushes = Pushes(
            ports.exchange,
            replica,
            self._pending,
            cursors,
            retry_interval_ms=pace.retry_interval_ms,
            clocks=clocks,
        )
        self.rows = self._row_source(replica)
        self.progress, self.figures = LearningProgress(), LearnerTotals()
        self.tally = self._pushes.tally
        self._backpressure = Backpressure(self._store, self._pushes, pace, self.figures)
        self._recheck_at_ms = 0
        now = self._steady_ms()
        self._timer = PushTimer(pace, now)
        self._fold_at_ms = now + pace.push_interval_ms
        self._unsent = self._unsent_messages = 0  # examples and messages since the last push
        self._alone = 0  # messages that are not merged with others

    def _row_source(self, replica: Replica | CachedReplica) -> AllRows | RowPrefetcher:
        if not isinstance(replica, CachedReplica):
            return AllRows()
        rows = replica, self.view, self._pending, self._pushes
        return RowPrefetcher(*rows, self._follow, self._pace.retry_interval_ms)

    def step(self, timeout_s: float) -> bool:
        """Do everything once; return whether anything was learned.

        1. poll    receive from Kafka: batches, ends, partitions assigned and revoked
        2. marks   find where an assigned partition begins: at the lowest mark of all buckets
        3. rows    fold what other learners pushed into the view; compare all marks now and then, in
                   case a bucket lost acknowledged writes
        4. learn   merge partitions by event time; score the candidates of each request, then learn
                   them: add to the view and to the pending deltas, where the bucket's cursor allows
                   it; hand the scores to Kafka. A message that the guard suspects is parked, and
                   tried again later. With nothing to learn, take part in the group's round
        5. push    if due: wait until Kafka has the scores, check that the topic was not recreated,
                   then send deltas with their offset spans
        6. answer  applied, refused (discard, read again) or unknown (send again); then commit
                   offsets, for lag dashboards
        7. pace    set the time until the next push
        """
        self.intake.poll(self._poll_timeout(timeout_s))
        self._find_marks()
        self._fold()
        self._recheck()
        throttled = self._backpressure.throttled()
        waiting = self._backpressure.waits_for_buckets()
        learned = (not waiting and self._learn_parked()) or self._learn_some()
        self.parked.tell(self.figures)
        if not learned:
            self._group.idle(self.view)
        if self._due():
            self._push(more=not throttled)
        self._answer()
        self._timer.adjust(self._steady_ms(), behind=self.intake.behind())
        return learned

    def finish(self, deadline_ms: int) -> bool:
        """Push what is pending and wait for the answers, until `deadline_ms` of the steady clock.

        Returns whether everything was acknowledged.
        """
        while not self._pushes.settled():
            if self._steady_ms() >= deadline_ms:
                return False
            if not self._pushes.awaited:
                self._push()
            self._answer()
            self._sleep(0.002)
        return True

    def _poll_timeout(self, timeout_s: float) -> float:
        if self._group.busy:
            return 0.0  # the other members wait for this one in the next round
        stuck = self._full() or self.figures.learns_nothing
        waits = self._pushes.awaited or (self.intake.ready() and not stuck)
        return min(timeout_s, 0.002) if waits else timeout_s

    def _find_marks(self) -> None:
        if not self.intake.unmarked:
            return
        answers = self._store.marks(range(self._shape.buckets))
        known = [answer for answer in answers if not isinstance(answer, Unreachable)]
        if len(known) == len(answers):  # a bucket whose marks are unknown can have no cursor
            self.intake.begin(known)

    def _fold(self) -> None:
        # not while a push is awaited: its own entry would return as if another learner sent it
        now = self._steady_ms()
        if self._pushes.awaited or now < self._fold_at_ms:
            return
        self._fold_at_ms = now + self._timer.usual_ms
        self._follow(self.replica.poll())
        if self.replica.compact() is not None:
            self._pending.compact()

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case Folded(bucket=bucket, deltas=deltas):
                    self._timer.others_pushed(self._steady_ms())
                    self._refresh(bucket, deltas.ids)
                case Deleted(bucket=bucket, ids=ids):
                    self._refresh(bucket, ids[self.view.find(ids) >= 0])
                case BucketRecopied(bucket=bucket):
                    known = np.union1d(self.view.ids, self.replica.table.ids)
                    self._refresh(bucket, known[self._shape.bucket_of(known) == bucket])
                    self._recheck_at_ms = 0

    def _recheck(self) -> None:
        # the answer to a push covers the marks of the sources that the push names, and no others
        now = self._steady_ms()
        if self._pushes.awaited or now < self._recheck_at_ms:
            return
        self._recheck_at_ms = now + self._pace.recheck_interval_ms
        quiet = [b for b in range(self._shape.buckets) if self._pushes.flying(b) is None]
        again: set[str] = set()
        for answer in self._store.marks(quiet):
            if not isinstance(answer, Unreachable):
                again.update(self._pushes.recheck(answer))
        self._check_marks(again)
        self._read_again(again)  # once, however many buckets went back
        self.intake.check_assigned_topics(self._pace.identity_interval_ms)

    def _check_marks(self, again: set[str]) -> None:
        """Check the marks of all buckets, if some went back: one may be from an old snapshot."""
        if not again:
            return
        answers = self._store.marks(range(self._shape.buckets))
        self.intake.check_marks([each for each in answers if not isinstance(each, Unreachable)])

    def _read_again(self, again: set[str]) -> None:
        if again:
            # in a group these examples were part of steps that all members took
            self._group.leave(f"examples of {', '.join(sorted(again))} must be read again")
        self.intake.read_again(again)

    def _refresh(self, bucket: int, ids: npt.NDArray[np.uint64]) -> None:
        self._pending.refresh(self.replica.table, ids, self._pushes.flying(bucket))

    def _learn_some(self) -> bool:
        """Learn what has arrived, for one push interval at most; return whether there was any."""
        until_ms = self._steady_ms() + self._pace.push_interval_ms
        learned = False
        while not self._full() and not self._backpressure.learns_nothing_new():
            window = self.intake.next_window(self._window_examples())
            if not window:
                break
            verdicts = [self.parked.before(batch) for batch in window]
            passed = [b for b, verdict in zip(window, verdicts, strict=True) if verdict is None]
            merged = MergedBatches(passed) if passed else None
            if merged and not self.rows.prepare(merged.examples, self._steady_ms()):
                self.intake.put_back(window)
                break
            if merged and not self._screen(merged):
                self.intake.put_back(window)
                continue
            learned = True
            self.parked.park(window, verdicts)
            if merged is None or self._learn(merged):
                self._skip(window, verdicts)
            else:
                # also skipped messages: they left their queue without a dead letter
                self._undo({batch.name for batch in window})
            self._note_unsent(window)
            self._alone = max(self._alone - len(window), 0)
            if self._due() or self._steady_ms() >= until_ms:
                break
        return learned

    def _screen(self, merged: MergedBatches) -> bool:
        """Return whether no message is suspect by the scores that it would get now."""
        if not any(self._guard.screens(each.name, each.offset) for each in merged.batches):
            return True
        shares = merged.of_messages(self._predicted(merged.examples))
        return all(self._guard.screen(batch, scores) for batch, scores in shares)

    def _note_unsent(self, window: Sequence[ExampleBatch]) -> None:
        count = sum(len(batch.examples) for batch in window)
        self._unsent += count
        self._unsent_messages += len(window)
        if self._pushes.unanswered:
            self.figures.unanswered_examples += count

    def _learn_parked(self) -> bool:
        """Learn a parked message that the guard no longer suspects; return whether one was."""
        if self._full():
            return False
        now = self._steady_ms()
        batch = self.parked.take(now, self._outputs, self.figures)
        if batch is None or not self.rows.prepare(batch.examples, now):
            return False
        if not self.parked.passes(batch, now, self._predicted):
            return False
        if not self._learn(MergedBatches([batch])):
            self._undo(set())
        self._note_unsent([batch])
        return True

    def _predicted(self, examples: Examples) -> npt.NDArray[np.float64]:
        """Score examples without learning them; shape (n,)."""
        ends = slate_ends(examples)
        return self._model.predict(self.view, examples.features, examples.event_ms, ends)

    def _window_examples(self) -> int:
        """Return how many examples to merge; 1: a message alone."""
        if self._alone or self._guard.careful:
            return 1
        most = min(self._pace.window_examples, self.rows.window_examples)
        bound = self._pace.staleness.examples or most
        return min(most, max(bound, self._pace.least_window_examples))

    def _skip(self, window: Sequence[ExampleBatch], verdicts: Sequence[Verdict | None]) -> None:
        """Move past the messages that are not learned; report those that are not parked."""
        for batch, verdict in zip(window, verdicts, strict=True):
            if verdict is not None:
                self.intake.skip_past(batch)
            first = self._guard.first_report
            if isinstance(verdict, Unlearnable) and first(batch.name, batch.offset):
                places = np.arange(len(batch.examples))
                examples = QuarantinedExamples(batch, places, verdict.reason)
                self._outputs.report(self.figures, [examples])

    def _learn(self, merged: MergedBatches) -> bool:
        """Learn messages; return whether what was learned stays."""
        examples = merged.examples
        active = self.parked.active(merged.batches[0])
        self.view.reserve(self._model.rows_needed(examples))
        try:
            scores = self._model.learn(self.view, self._pending.reserve(), active, examples)
        except NotPulled:
            return False
        shares = list(merged.of_messages(scores))
        if len(shares) > 1 and self._guard.suspects(shares):
            # one may have spoiled the scores of the others: learned alone, after all that is read
            # again before it, it shows
            self._alone = self._unsent_messages + 2 * len(shares)
            return False
        if not all(self._guard.accepts(batch, own, self._pending) for batch, own in shares):
            return False
        self._outputs.report(self.figures, merged.by_message(self._group.quarantined()))
        for batch, own in shares:
            self.parked.learned(batch)
            self._outputs.send_scores(batch, own)
            self._count(batch)
        return True

    def _count(self, batch: ExampleBatch) -> None:
        """Add a batch to the totals and to the progress."""
        examples, figures = batch.examples, self.figures
        figures.examples += len(examples)
        figures.clicks += int(examples.labels.sum())
        event_ms, append_ms = int(examples.event_ms.max()), int(examples.append_ms.max())
        self.progress.learned(batch.name, event_ms, append_ms)
        clicked = examples.append_ms[examples.kinds == Kind.CLICKED]
        self.progress.clicked(batch.name, batch.offset, clicked.tolist())

    def _undo(self, again: set[str]) -> None:
        """Drop what was learned since the last push; read it and these sources again."""
        self._read_again(self._pushes.undo() | again)

    def _full(self) -> bool:
        """Return whether what was learned must be pushed before more is learned."""
        most = self._pace.staleness.examples
        if self.figures.throttled:
            most = self._pace.unsent_limit if self._pace.staleness == AT_EASE else 0
        return most is not None and self._unsent >= most

    def _due(self) -> bool:
        due = self._full() or self._timer.due(self._steady_ms())
        return due and not self._pushes.awaited

    def _push(self, *, more: bool = True) -> None:
        """Send what is pending; without `more`, only what was sent and not answered."""
        if not more:
            self._pushes.send_again(before=self._seal)
            return
        self._recheck_at_ms = 0
        self._timer.pushed(self._steady_ms())
        self._unsent = self._unsent_messages = 0
        if (why := self._guard.refuses_push(self._pending)) is not None:
            self._group.leave(why)  # no inspection of a mini-batch showed it
            self._undo(set())
        self._pushes.send(self.progress, before=self._seal)

    def _seal(self) -> None:
        """Make sure that Kafka has the scores of what was learned, and still the same topic."""
        self._outputs.flush()
        self.intake.check_topics()

    def _answer(self) -> None:
        again = self._pushes.handle_answers()
        if again is not None:
            if self._pace.staleness.examples is not None:
                self._fold_at_ms = 0  # fold before learning more
            self._check_marks(again)
            self._read_again(again)
            self.intake.commit()
