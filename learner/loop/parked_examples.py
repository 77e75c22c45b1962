"""Parked messages of the partitions that a learner owns: parked, tried again, learned or dropped.

A message that the batch guard suspects stays in Kafka, and the marks name it (`marks`). Its
examples are not kept in memory: the learner reads a message again when it tries it. It tries one
message at a time, the one that waited longest, at a bounded cost: under the present view, without
learning, and only now and then, unless the guard says that the change lasts. Once the guard no
longer suspects a message, the learner learns it like any other, in the buckets that parked it.
Its impressions are scored then, for the first time that counts.

An operator may ask to learn or to drop a message. The request is in its marks, and the learner that
owns the partition obeys it, so a request and the learner's own decision cannot both happen in a
bucket. A message that Kafka deleted stays parked by name until an operator drops it: nothing else
would tell that its examples are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.ingest.errors import KafkaUnreachable, OffsetGone
from headrace.ingest.examples.batch import Examples
from headrace.ingest.kafka.protocols import Record, Source
from headrace.ingest.kafka.reading.record_fetcher import RecordFetcher
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.guard.batch_guard import BatchGuard, Unlearnable, Verdict
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.marks.parked_marks import ParkedMessage, ParkedRequest
from headrace.learner.loop.merging import ExampleBatch, QuarantinedExamples
from headrace.runtime.counted_nouns import counted

if TYPE_CHECKING:
    from headrace.learner.loop.outputs import LearnerOutputs, LearnerTotals

log = logging.getLogger(__name__)

_EARLIER = "parked before this learner owned the partition"

_REMEMBERED = 10_000
"""Messages with a reason in memory; beyond it, all are forgotten and begin anew."""

_Place = tuple[str, int]
"""The name of a source in the marks, and an offset."""


class ParkedExamples:
    """Decides when a parked message is tried, and obeys the requests of operators."""

    def __init__(
        self,
        intake: ExampleQueue,
        cursors: Cursors,
        guard: BatchGuard,
        fetcher: RecordFetcher | None,
        decode: Callable[[Record], Examples | None],
        *,
        retry_interval_ms: int,
        limit: int,
    ) -> None:
        """fetcher: reads single messages; None: what is parked stays parked. limit: of messages."""
        self._intake, self._cursors, self._guard = intake, cursors, guard
        self._fetcher, self._decode = fetcher, decode
        self._retry_interval_ms, self._limit = retry_interval_ms, limit
        self._reasons: dict[_Place, str] = {}
        self._tried_at_ms: dict[_Place, int] = {}
        self._round: set[_Place] = set()
        """The messages tried since one was tried twice: the guard judges them together."""
        self._try_at_ms = self._read_at_ms = 0
        self._current: tuple[_Place, ExampleBatch | None] | None = None
        """The message that is tried, and its examples once they are read."""
        self._gone: set[_Place] = set()

    @property
    def messages(self) -> tuple[ParkedMessage, ...]:
        """All parked messages of the owned partitions."""
        return self._cursors.parked.messages()

    @property
    def full(self) -> bool:
        """Whether so much is parked that nothing more may be: then learning waits."""
        return len(self.messages) >= self._limit

    def tell(self, figures: LearnerTotals) -> None:
        """Let the figures say what is parked, and how much of it Kafka has deleted."""
        if figures.parked is not self.messages or self._gone:
            figures.parked = self.messages
            places = [(each.source, each.offset) for each in figures.parked]
            figures.parked_lost = sum(place in self._gone for place in places)

    def reason(self, place: _Place) -> str:
        """Return why a message is parked, as far as this process knows."""
        cause = self._cursors.parked.cause(*place)
        return self._reasons.get(place) or (f"{cause}, {_EARLIER}" if cause else _EARLIER)

    def before(self, batch: ExampleBatch) -> Verdict | None:
        """Return why a batch is not learned when it is reached, or None.

        A message that any bucket has parked is parked by those that still lack it, too: then all of
        them learn it together.
        """
        if (batch.name, batch.offset) in self._cursors.parked:
            place = batch.name, batch.offset
            return Suspect(self.reason(place), self._cursors.parked.cause(*place))
        return self._guard.before(batch.name, batch.offset, batch.examples)

    def park(self, window: Sequence[ExampleBatch], verdicts: Sequence[Verdict | None]) -> None:
        """Note that every bucket that lacks a suspect batch parks it. The queue must then pass it.

        Call it before any batch of the window is passed: the last one may take the cursors to the
        end of the partition.
        """
        for batch, verdict in zip(window, verdicts, strict=True):
            if isinstance(verdict, Suspect):
                place, count = (batch.name, batch.offset), len(batch.examples)
                active = self._intake.active(batch)
                self._cursors.parked.park(*place, count, active, verdict.cause)
                self._note(batch, verdict.reason)

    def _note(self, batch: ExampleBatch, why: str) -> None:
        place = batch.name, batch.offset
        if place not in self._reasons:
            if len(self._reasons) > _REMEMBERED:
                self._reasons, self._tried_at_ms = {}, {}
            self._reasons[place] = why
            examples = counted(len(batch.examples), "example")
            log.warning("%s: %s parked: %s", _named(batch), examples, why)

    def active(self, batch: ExampleBatch) -> npt.NDArray[np.bool_]:
        """Return the buckets in which a batch counts; shape (buckets,).

        If it is parked, those that parked it. A bucket that has not reached it may lack messages
        before it, which must not be passed.
        """
        unread = self._intake.active(batch)
        if (batch.name, batch.offset) not in self._cursors.parked:
            return unread
        return self._cursors.parked.active(batch.name, batch.offset, unread.shape[0])

    def learned(self, batch: ExampleBatch) -> None:
        """Note that the batch is applied or pending in every bucket that `active` returned."""
        if (batch.name, batch.offset) in self._cursors.parked:
            self._cursors.parked.end(batch.name, batch.offset)
        else:
            self._intake.skip_past(batch)

    def take(
        self, now_ms: int, outputs: LearnerOutputs, figures: LearnerTotals
    ) -> ExampleBatch | None:
        """Return a parked batch to try now, or None.

        The same batch is returned until `passes` was asked. A message that an operator drops, and
        one that turns out to be unlearnable, is reported as a dead letter and no longer parked.
        """
        message = self._due(now_ms)
        if message is None:
            return None
        dropping = message.request is ParkedRequest.DROP
        if dropping and not self._cursors.parked.asked_everywhere(message):
            return None
        batch = self._read(message, now_ms)
        if (reason := self._refusal(message, batch)) is None:
            return batch
        if batch is None:
            outputs.report_gone(figures, self._source(message), message, reason)
        else:
            places = np.arange(len(batch.examples))
            outputs.report(figures, [QuarantinedExamples(batch, places, reason)])
        self._cursors.parked.end(message.source, message.offset)
        self._current = None
        return None

    def passes(
        self,
        batch: ExampleBatch,
        now_ms: int,
        scores: Callable[[Examples], npt.NDArray[np.float64]],
    ) -> bool:
        """Return whether to learn a batch that `take` returned; if not, it is tried again later.

        scores: scores examples under the present view.
        """
        place = batch.name, batch.offset
        requested = any((m.source, m.offset) == place and m.request for m in self.messages)
        self._current, self._try_at_ms = None, now_ms
        self._tried_at_ms[place] = now_ms
        if new_round := not self._round or place in self._round:
            self._round.clear()
        self._round.add(place)
        if not requested and not self._guard.reconsider(
            batch.examples, scores(batch.examples), new_round=new_round
        ):
            self._try_at_ms += self._retry_interval_ms
            return False
        log.info("%s: learns the parked examples", _named(batch))
        self._guard.learn_on_reread(batch.name, batch.offset)
        return True

    def _due(self, now_ms: int) -> ParkedMessage | None:
        """Return the message to try now: one that an operator asked about, or the next in turn."""
        messages = self.messages
        if not messages or self._fetcher is None:
            self._current = None
            self._round.clear()
            return None
        drops = [m for m in messages if m.request is ParkedRequest.DROP]
        there = [m for m in messages if (m.source, m.offset) not in self._gone]
        requested = [*drops, *(m for m in there if m.request)]
        if requested or not there:
            return requested[0] if requested else None
        if self._intake.ready():
            self._read_at_ms = now_ms
        # an alert ends with good examples: if none come, with time
        idle = now_ms - self._read_at_ms >= self._retry_interval_ms
        waits = now_ms < self._try_at_ms or (self._guard.alert and not idle and not self.full)
        if waits and not self._guard.lasting and self._current is None:
            return None
        return min(there, key=lambda m: self._tried_at_ms.get((m.source, m.offset), -1))

    def _read(self, message: ParkedMessage, now_ms: int) -> ExampleBatch | None:
        """Return the examples of a message; None while they are under way, or if they are gone."""
        place = message.source, message.offset
        if self._current is None or self._current[0] != place:
            self._current = place, None
        if (batch := self._current[1]) is not None or place in self._gone:
            return batch
        source = self._source(message)
        try:
            record = self._fetched(source, message)
        except OffsetGone as error:
            log.error("%s parked examples are lost: %s", message.examples, error)
            self._gone.add(place)
            return None
        except KafkaUnreachable as error:
            log.warning("parked examples are tried again later: %s", error)
            self._current, self._try_at_ms = None, now_ms + self._retry_interval_ms
            return None
        examples = None if record is None else self._decode(record)
        if record is not None and examples is not None:
            batch = ExampleBatch(source, *place, examples, record.leader_epoch)
            self._current = place, batch
        return batch

    def _fetched(self, source: Source, message: ParkedMessage) -> Record | None:
        """Read a message; None while it is under way. Raises OffsetGone, KafkaUnreachable."""
        assert self._fetcher is not None
        if message.source != self._intake.name_of(source):
            raise OffsetGone(f"{message.source} at offset {message.offset}: its topic was deleted")
        return self._fetcher.fetch(source, message.offset)

    def _source(self, message: ParkedMessage) -> Source:
        number = int(message.source.rpartition("/")[2])
        return next(each for each in self._intake.committed if each.partition == number)

    def _refusal(self, message: ParkedMessage, batch: ExampleBatch | None) -> str | None:
        """Return why a message, whose examples were read or are gone, is never learned, or None."""
        place = message.source, message.offset
        if batch is not None:
            verdict = self._guard.before(*place, batch.examples)
            if isinstance(verdict, Unlearnable):
                return verdict.reason
        if message.request is ParkedRequest.DROP and (batch is not None or place in self._gone):
            return f"an operator dropped it; parked because: {self.reason(place)}"
        return None


def _named(batch: ExampleBatch) -> str:
    return f"{batch.source.topic}/{batch.source.partition} at offset {batch.offset}"
