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
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ingest.examples import Examples, Kind, unpack
from ingest.stream import AtEnd, Gained, Lost, Reader, Record, Source, Writer
from learner.cursors import Cursors
from learner.errors import MarkOutsideTopic
from learner.pending import Gaining, Pending
from learner.scores import Scores
from learner.scores import pack as pack_scores
from pserver.errors import OutOfMemory, Unreachable
from pserver.gains import Gains, Header, Reached, pack
from pserver.replica import Copied, Folded, Replica
from pserver.store import Answer, Push, Store
from pserver.table import RowTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from ingest.fields import FieldSet

log = logging.getLogger(__name__)

_MOST_CLICKS_TRACED = 256
"""Click append times an entry carries at most: enough for quantiles, bounded under a burst."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How far a learner may run ahead of the store, and how it shares its time."""

    push_interval_ms: int = 50
    """Between two pushes of a bucket: the learner's share of freshness."""
    backlog_interval_ms: int = 400
    """The same while there is a backlog: longer, since a hot row then costs one addition a push."""
    log_bytes_limit: int = 64 << 20
    """Unfolded bytes of one bucket beyond which the learner waits for keepers: before memory ends."""
    order_wait_ms: int = 200
    """How long a partition with nothing to read holds up the others, in wall time."""
    ahead_limit: int = 32
    """Batches of one partition held in memory; beyond it the partition is paused."""
    retry_interval_ms: int = 200
    """Before the same push is sent again to a bucket that did not answer."""


class Model(Protocol):
    """What the loop needs of a model."""

    def rows_needed(self, examples: Examples) -> int:
        """Upper bound of the rows that `learn` may add."""

    def learn(
        self,
        view: RowTable,
        gaining: Gaining,
        active: npt.NDArray[np.bool_],
        examples: Examples,
    ) -> npt.NDArray[np.float64]:
        """Score, then learn, example by example; NaN where an example is not scored."""


class Exchange(Protocol):
    """Sends a round of pushes while the learner learns on; one round at a time."""

    def send(self, pushes: Sequence[Push]) -> None:
        """Begin. Nothing else is under way."""

    def receive(self) -> list[Answer | Unreachable] | None:
        """Return the answers in the order sent, or None while they are awaited."""


@dataclass(slots=True)
class Figures:
    """Running totals of one learner, for its metrics."""

    examples: int = 0
    pushes_applied: int = 0
    pushes_refused: int = 0
    pushes_unanswered: int = 0
    rows_pushed: int = 0
    bytes_pushed: int = 0
    reread: int = 0
    throttled: bool = False
    event_ms: int = 0
    append_ms: int = 0
    clicks: int = 0
    scored: int = 0
    score_sum: float = 0.0


class _Batch(NamedTuple):
    offset: int
    examples: Examples


@dataclass(slots=True)
class _Flight:
    push: Push
    gains: Gains
    header: Header
    resend_at_ms: int = 0


@dataclass(slots=True)
class _Intake:
    """One partition of examples that is ours."""

    name: str
    batches: deque[_Batch] = field(default_factory=deque)
    end: int | None = None
    """First offset not yet in Kafka, while all before it was delivered."""
    empty_since_ms: int = 0
    paused: bool = False


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
        replica: Replica,
        model: Model,
        fields: FieldSet,
        pace: Pace,
        now_ms: Callable[[], int],
        draw_nonce: Callable[[], bytes],
        rest: Callable[[float], None],
    ) -> None:
        self._reader, self._scores, self._score_topic = reader, scores, score_topic
        self._store, self._exchange, self._replica = store, exchange, replica
        self._model, self._fields, self._pace = model, fields, pace
        self._now_ms, self._draw_nonce, self._rest = now_ms, draw_nonce, rest
        self._shape = replica.shape
        self.view = RowTable(self._shape.width)
        self._pending = Pending(self.view, self._shape)
        self._pending.refresh(replica.table, replica.table.ids.copy(), None)
        self._cursors = Cursors(self._shape.buckets)
        self._flights: dict[int, _Flight] = {}
        self._awaited: list[int] = []  # buckets whose answers the exchange will bring, in order
        self._intakes: dict[Source, _Intake] = {}
        self._waiting: set[Source] = set()  # gained, but some bucket's marks could not be read
        self._append_ms: dict[str, int] = {}  # source -> greatest append time learned
        self._clicks: dict[str, list[tuple[int, int]]] = {}  # source -> clicks since the last push
        self._log_bytes = np.zeros(self._shape.buckets, np.int64)
        self._pushed_at_ms = self._folded_at_ms = now_ms()
        self._interval_ms = pace.push_interval_ms
        self.figures = Figures()

    # ---------------------------------------------------------------- the order of effects

    def step(self, timeout_s: float) -> bool:
        """Do everything once; return whether anything was learned.

        1. poll   what came from Kafka: batches, ends, partitions gained and lost
        2. marks  where a gained partition begins: at the lowest mark of all buckets
        3. rows   fold what other learners pushed, so that the view is present and fresh
        4. learn  predict, then learn, example by example; keep the scores
        5. score  hand the scores to Kafka
        6. push   if due: wait until Kafka has the scores, then send gains with their spans
        7. answer applied, refused (discard and read again) or unknown (send again)
        8. commit offsets, for lag dashboards
        """
        self._poll(timeout_s)
        self._find_marks()
        self._fold()
        learned = not self._throttled() and self._learn_some()
        if self._due():
            self._push()
        self._answer()
        self._set_pace()
        return learned

    def finish(self, deadline_ms: int) -> bool:
        """Push what is pending and wait for the answers; return whether all was acknowledged."""
        while self._flights or self._has_spans():
            if self._now_ms() >= deadline_ms:
                return False
            if not self._awaited:
                self._push()
            self._answer()
            self._rest(0.002)
        return True

    # ---------------------------------------------------------------- 1. poll

    def _poll(self, timeout_s: float) -> None:
        ready = any(intake.batches for intake in self._intakes.values())
        wait = 0.0 if ready and not self.figures.throttled else timeout_s
        if self._awaited:
            wait = min(wait, 0.002)
        for happening in self._reader.poll(wait):
            match happening:
                case Record():
                    self._take(happening)
                case AtEnd(source, offset):
                    self._end(source, offset)
                case Gained(source):
                    self._waiting.add(source)
                case Lost(source):
                    self._lose(source)
        for source, intake in self._intakes.items():
            full = len(intake.batches) >= self._pace.ahead_limit
            if full and not intake.paused:
                self._reader.pause([source])
            elif intake.paused and not full:
                self._reader.resume([source])
            intake.paused = full

    def _take(self, record: Record) -> None:
        intake = self._intakes.get(record.source)
        if intake is None:
            return
        intake.end = None
        if not self._cursors.active(intake.name, record.offset).any():
            return
        examples = unpack(record.value, self._fields)
        intake.batches.append(_Batch(record.offset, examples))

    def _end(self, source: Source, offset: int) -> None:
        intake = self._intakes.get(source)
        if intake is None:
            return
        intake.end = offset
        self._reach_end(intake)

    def _reach_end(self, intake: _Intake) -> None:
        if intake.end is not None and not intake.batches:
            # nothing but markers of transactions lies between the last batch and the end
            self._cursors.advance(intake.name, intake.end)

    def _lose(self, source: Source) -> None:
        self._waiting.discard(source)
        intake = self._intakes.pop(source, None)
        if intake is not None:
            # what is pending of it still goes out: the marks tell whether it may count
            self._cursors.forget_settled(intake.name)

    # ---------------------------------------------------------------- 2. marks

    def _find_marks(self) -> None:
        if not self._waiting:
            return
        answers = self._store.marks(range(self._shape.buckets))
        marks: list[Answer] = [answer for answer in answers if not isinstance(answer, Unreachable)]
        if len(marks) < len(answers):
            return  # a bucket whose marks are unknown cannot be given a cursor: ask again
        for source in sorted(self._waiting):
            name = f"{self._reader.topic_id(source.topic)}/{source.partition}"
            self._cursors.gained(
                name, np.array([answer.marks.get(name, 0) for answer in marks], np.int64)
            )
            self._intakes[source] = _Intake(name, empty_since_ms=self._now_ms())
            self._start(source)
        self._waiting.clear()

    def _start(self, source: Source) -> None:
        intake = self._intakes[source]
        offset = self._cursors.resume_at(intake.name)
        first, end = self._reader.held(source)
        if not first <= offset <= end:
            raise MarkOutsideTopic(source, intake.name, offset, first, end)
        intake.batches.clear()
        intake.end = None
        self._reader.start({source: offset})

    # ---------------------------------------------------------------- 3. rows

    def _fold(self) -> None:
        # not while a push is awaited: its entry would come back as if it were somebody else's
        if self._awaited or self._now_ms() - self._folded_at_ms < self._pace.push_interval_ms:
            return
        self._folded_at_ms = self._now_ms()
        for change in self._replica.poll():
            match change:
                case Folded(bucket=bucket, gains=gains):
                    self._refresh(bucket, gains.ids)
                case Copied(bucket=bucket):
                    known = np.union1d(self.view.ids, self._replica.table.ids)
                    self._refresh(bucket, known[self._shape.bucket_of(known) == bucket])

    def _refresh(self, bucket: int, ids: npt.NDArray[np.uint64]) -> None:
        flight = self._flights.get(bucket)
        self._pending.refresh(self._replica.table, ids, flight.gains if flight else None)

    # ---------------------------------------------------------------- 4. and 5. learn, score

    def _next(self) -> tuple[Source, _Batch] | None:
        """The batch with the least event time, unless a partition that may have less is late."""
        now, chosen = self._now_ms(), None
        for source, intake in self._intakes.items():
            if intake.batches:
                intake.empty_since_ms = now
                head_ms = int(intake.batches[0].examples.event_ms[0])
                if chosen is None or head_ms < chosen[0]:
                    chosen = (head_ms, source)
            elif intake.end is None and now - intake.empty_since_ms < self._pace.order_wait_ms:
                return None
        if chosen is None:
            return None
        return chosen[1], self._intakes[chosen[1]].batches.popleft()

    def _learn_some(self) -> bool:
        """Learn what is there, for at most a push interval; return whether there was anything."""
        until_ms = self._now_ms() + self._pace.push_interval_ms
        learned = False
        while (batch := self._next()) is not None:
            learned = True
            self._learn(*batch)
            if self._due() or self._now_ms() >= until_ms:
                break
        return learned

    def _learn(self, source: Source, batch: _Batch) -> None:
        intake, (offset, examples) = self._intakes[source], batch
        active = self._cursors.active(intake.name, offset)
        self.view.reserve(self._model.rows_needed(examples))
        scores = self._model.learn(self.view, self._pending.reserve(), active, examples)
        self._cursors.advance(intake.name, offset + 1)
        self._reach_end(intake)
        self._send_scores(source, examples, scores)
        figures = self.figures
        figures.examples += len(examples)
        figures.event_ms = max(figures.event_ms, int(examples.event_ms.max(initial=0)))
        latest_ms = int(examples.append_ms.max(initial=0))
        figures.append_ms = max(figures.append_ms, latest_ms)
        self._append_ms[intake.name] = max(self._append_ms.get(intake.name, 0), latest_ms)
        clicked = examples.append_ms[examples.kinds == Kind.CLICKED]
        figures.clicks += int(examples.labels.sum())
        traced = self._clicks.setdefault(intake.name, [])
        room = _MOST_CLICKS_TRACED - len(traced)
        traced += [(offset, int(append_ms)) for append_ms in clicked[:room]]

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

    # ---------------------------------------------------------------- 6. push

    def _has_spans(self) -> bool:
        return any(self._cursors.spans(bucket) for bucket in range(self._shape.buckets))

    def _due(self) -> bool:
        if self._awaited:
            return False
        return self._now_ms() - self._pushed_at_ms >= self._interval_ms

    def _push(self) -> None:
        now = self._now_ms()
        self._pushed_at_ms = now
        again = [flight for flight in self._flights.values() if flight.resend_at_ms <= now]
        spans = {
            bucket: covered
            for bucket in range(self._shape.buckets)
            if bucket not in self._flights and (covered := self._cursors.spans(bucket))
        }
        if not again and not spans:
            return
        self._scores.flush()
        taken = self._pending.take(list(spans)) if spans else {}
        clicks, self._clicks = self._clicks, {}
        for bucket, covered in spans.items():
            reached = [
                Reached(s.source, s.start, s.stop, self._append_ms.get(s.source, 0),
                        clicks.pop(s.source, []))
                for s in covered
            ]  # fmt: skip
            gains = taken[bucket]
            header = Header(
                self._shape.width,
                gains.ids.shape[0],
                self.figures.event_ms,
                self.figures.append_ms,
                reached,
            )
            push = Push(bucket, covered, self._draw_nonce(), pack(header, gains))
            self._flights[bucket] = _Flight(push, gains, header)
            self.figures.rows_pushed += header.rows
            self.figures.bytes_pushed += len(push.blob)
        pushes = [flight.push for flight in again] + [self._flights[b].push for b in spans]
        self._awaited = [push.bucket for push in pushes]
        self._exchange.send(pushes)

    # ---------------------------------------------------------------- 7. answer

    def _answer(self) -> None:
        if not self._awaited:
            return
        answers = self._exchange.receive()
        if answers is None:
            return
        awaited, self._awaited = self._awaited, []
        reread: set[str] = set()
        for bucket, answer in zip(awaited, answers, strict=True):
            flight = self._flights[bucket]
            if isinstance(answer, Unreachable):
                self.figures.pushes_unanswered += 1
                flight.resend_at_ms = self._now_ms() + self._pace.retry_interval_ms
                if isinstance(answer, OutOfMemory):
                    log.warning("bucket %d: %s", bucket, answer)
                continue
            self._log_bytes[bucket] = answer.log_bytes
            if answer.covers(flight.push.spans):
                self._applied(flight, answer)
            else:
                reread.update(self._refused(flight, answer))
        for source, intake in self._intakes.items():
            if intake.name in reread:
                self._start(source)
        if reread or awaited:
            self._commit()

    def _applied(self, flight: _Flight, answer: Answer) -> None:
        bucket = answer.bucket
        self.figures.pushes_applied += 1
        self._cursors.acknowledge(bucket, flight.push.spans)
        del self._flights[bucket]
        if answer.nonce == flight.push.nonce:
            self._replica.fold_own(
                bucket, answer.version, answer.nonce, answer.previous, flight.header, flight.gains
            )
        # if the replica could not fold it now, it comes with the next poll like anybody's
        self._pending.refresh(self._replica.table, flight.gains.ids, None)

    def _refused(self, flight: _Flight, answer: Answer) -> list[str]:
        bucket = answer.bucket
        self.figures.pushes_refused += 1
        log.info(
            "bucket %d refused %s, its marks are %s: discarding and reading again",
            bucket, flight.push.spans, dict(answer.marks),
        )  # fmt: skip
        del self._flights[bucket]
        pending = self._pending.take([bucket])[bucket]
        back = self._cursors.discard(bucket, answer.marks, flight.push.spans)
        ids = np.union1d(flight.gains.ids, pending.ids)
        self._pending.refresh(self._replica.table, ids, None)
        self.figures.reread += len(back)
        return back

    # ---------------------------------------------------------------- 8. commit, pace

    def _commit(self) -> None:
        self._reader.commit(
            {
                source: self._cursors.resume_at(intake.name)
                for source, intake in self._intakes.items()
            }
        )

    def _throttled(self) -> bool:
        """Whether logs have grown so far that learning waits for keepers."""
        limit = self._pace.log_bytes_limit
        full = bool((self._log_bytes > limit).any())
        if full:
            answers = self._store.marks(np.flatnonzero(self._log_bytes > limit).tolist())
            for answer in answers:
                if not isinstance(answer, Unreachable):
                    self._log_bytes[answer.bucket] = answer.log_bytes
            full = bool((self._log_bytes > limit).any())
        if full and not self.figures.throttled:
            log.warning(
                "logs hold %d bytes in a bucket, limit %d: waiting for `headrace pserver keep`",
                self._log_bytes.max(), limit,
            )  # fmt: skip
        self.figures.throttled = full
        return full

    def _set_pace(self) -> None:
        behind = any(len(intake.batches) > 1 for intake in self._intakes.values())
        goal = self._pace.backlog_interval_ms if behind else self._pace.push_interval_ms
        self._interval_ms = min(goal, 2 * self._interval_ms)
