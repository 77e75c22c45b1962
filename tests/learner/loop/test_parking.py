"""A suspect batch is parked: it stays in Kafka, and is learned later, or dropped as asked."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from headrace.ingest.dead_letters.letter import Letter, unpack
from headrace.ingest.examples.batch import Examples
from headrace.ingest.kafka.protocols import Record, Source
from headrace.learner.loop.guard.batch_guard import BatchGuard, Verdict
from headrace.learner.loop.guard.surprise import Suspect
from headrace.learner.loop.learner import Learner
from headrace.learner.loop.marks.parked_marks import (
    ParkedCause,
    ParkedRequest,
    parked_mark,
    parked_messages,
    parked_value,
)
from headrace.learner.loop.marks.parked_requests import ask
from headrace.learner.loop.pacing import LearnerPacing
from headrace.learner.loop.scores import unpack as unpack_scores
from headrace.learner.spec.model_spec import ModelSpec
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas
from headrace.pserver.rows.deltas import pack as pack_deltas
from headrace.pserver.rows.row_codec import FoldedRows
from headrace.pserver.store import OffsetSpan, Push
from tests.learner.in_memory import TOPIC, InMemoryModel, cut, records_of
from tests.learner.streams import random_examples, random_spec

BATCH, BATCHES, BAD = 40, 12, 5
PACE = LearnerPacing(push_interval_ms=10, backlog_interval_ms=10, parked_limit=3)
SOURCE = Source(TOPIC, 0)


class _Guard(BatchGuard):
    """Suspects the batches at some offsets, as long as the test leaves them there."""

    alert = lasting = False

    def __init__(self, suspects: set[int]) -> None:
        super().__init__(1000)
        self.suspects_at = suspects
        self.released: set[int] = set()
        self.scored: list[int] = []
        self.rounds: list[bool] = []
        """Of each parked message that was tried: whether a round began."""

    def before(self, name: str, offset: int, examples: Examples) -> Verdict | None:
        if offset in self.suspects_at - self.released:
            return Suspect("as the test says", ParkedCause.REPEATS)
        return super().before(name, offset, examples)

    def reconsider(
        self, examples: Examples, scores: npt.NDArray[np.float64], *, new_round: bool
    ) -> bool:
        self.rounds.append(new_round)
        assert scores.shape == (len(examples),)
        assert np.isfinite(scores).all()
        self.scored.append(len(examples))
        return not self.suspects_at

    def learn_on_reread(self, name: str, offset: int) -> None:
        super().learn_on_reread(name, offset)
        self.released.add(offset)


class _Stage:
    """A learner of one stream, whose guard suspects some of its batches."""

    def __init__(self, suspects: Collection[int] = (), pace: LearnerPacing = PACE) -> None:
        dice = np.random.default_rng(3)
        self.spec: ModelSpec = random_spec(dice, "window", statistics=False)
        examples = random_examples(dice, self.spec, BATCHES * BATCH, closed=True)
        self.records = records_of(cut(examples, BATCH))
        self.model = InMemoryModel(self.spec)
        self.guard, self.pace = _Guard(set(suspects)), pace
        self.learner = self.start()

    def start(self) -> Learner:
        """A learner that begins at the marks."""
        self.learner = self.model.learner(self.records, self.pace, guard=self.guard)
        return self.learner

    def run(self, steps: int = 300) -> None:
        for _ in range(steps):
            self.model.now_ms += 10
            self.learner.step(0.0)

    def parked(self) -> list[int]:
        """Offsets parked in all buckets; no bucket differs."""
        found = parked_messages(answer.marks for answer in self.model.answers())
        assert {each.buckets for each in found} <= {self.model.shape.buckets}
        assert all(each.examples == BATCH for each in found)
        return [each.offset for each in found]

    def ask(self, request: ParkedRequest) -> int:
        [message] = parked_messages(answer.marks for answer in self.model.answers())
        return ask(self.model.store, message, request, self.model.nonce)

    def letters(self) -> list[Letter]:
        sent = [e.value for e in self.model.written.sent if e.target.topic == "dead-letters"]
        return [each for each in map(unpack, sent) if isinstance(each, Letter)]

    def scored(self) -> set[str]:
        sent = [e.value for e in self.model.written.sent if e.target.topic.startswith("scores")]
        return {i for value in sent for i in unpack_scores(value).impression_ids.to_pylist()}


def _waits(learner: Learner) -> bool:
    return learner.figures.waiting_for_parked


def _counts(rows: FoldedRows) -> list[list[int]]:
    return [rows.ids.tolist(), rows.shows.tolist(), rows.clicks.tolist()]


def _without(offsets: set[int]) -> FoldedRows:
    """The rows of a stream without the batches at these offsets."""
    stage = _Stage()
    stage.records = [each for each in stage.records if each.offset not in offsets]
    stage.start()
    stage.run()
    return stage.model.rows()


def test_a_parked_batch_leaves_no_trace_but_its_marks_and_the_learner_goes_on() -> None:
    stage = _Stage({BAD})
    stage.run()
    assert stage.model.learned({0: BATCHES})
    assert stage.parked() == [BAD]
    assert [(m.offset, m.examples) for m in stage.learner.figures.parked] == [(BAD, BATCH)]
    assert _counts(stage.model.rows()) == _counts(_without({BAD}))
    assert stage.letters() == []
    assert len(stage.scored()) == (BATCHES - 1) * BATCH
    assert stage.guard.scored  # it is tried now and then


def test_parked_batches_are_tried_at_once_while_the_guard_says_that_the_change_lasts() -> None:
    stage = _Stage({BAD}, replace(PACE, parked_interval_ms=1 << 60))
    stage.run()
    stage.guard.suspects_at.clear()
    stage.run()
    assert stage.parked() == [BAD]
    stage.guard.lasting = True
    stage.run(5)
    assert stage.parked() == []


def test_a_round_of_parked_batches_begins_anew_once_each_was_tried() -> None:
    stage = _Stage({BAD, BAD + 1, BAD + 2})
    while len(stage.guard.rounds) < 7:
        stage.run(PACE.parked_interval_ms // 10)
    assert stage.guard.rounds[:7] == [True, False, False, True, False, False, True]
    stage.guard.suspects_at.clear()
    stage.run()
    assert stage.parked() == []


def test_nothing_is_tried_on_the_alert_while_batches_come_unless_no_more_may_be_parked() -> None:
    stage = _Stage({BAD})
    stage.guard.alert = True
    stage.run(PACE.parked_interval_ms // 10)
    assert stage.model.learned({0: BATCHES})
    assert stage.guard.scored == []
    stage.run(PACE.parked_interval_ms // 10)
    assert stage.guard.scored
    full = _Stage({1, 2, 3})
    full.guard.alert = True
    full.run()
    assert full.guard.scored


def test_no_example_is_passed_over_while_as_much_is_parked_as_may_be() -> None:
    stage = _Stage(set(range(2, BATCHES)))
    stage.run()
    parked = stage.parked()
    assert len(parked) >= PACE.parked_limit
    assert _waits(stage.learner)
    marks = stage.model.marks()
    stage.run()
    assert stage.model.marks() == marks
    stage.guard.suspects_at.clear()
    stage.run(1500)
    assert stage.parked() == []
    assert not _waits(stage.learner)
    assert stage.learner.figures.parked == ()
    assert _counts(stage.model.rows()) == _counts(_without(set()))
    assert len(stage.scored()) == BATCHES * BATCH


def test_an_operator_drops_a_parked_batch_once_and_its_dead_letter_says_so() -> None:
    stage = _Stage({BAD})
    stage.run()
    buckets = stage.model.shape.buckets
    asked = [ParkedRequest.LEARN, ParkedRequest.DROP, ParkedRequest.LEARN, ParkedRequest.DROP]
    assert [stage.ask(each) for each in asked] == [buckets, buckets, 0, 0], "a drop is final"
    stage.run()
    assert stage.parked() == []
    [letter] = stage.letters()
    assert (letter.topic, letter.partition, letter.offset) == (TOPIC, 0, BAD)
    assert letter.reason == (
        "batch of 40 examples quarantined: an operator dropped it; parked because: as the test says"
    )
    assert _counts(stage.model.rows()) == _counts(_without({BAD}))


def test_an_operator_lets_a_batch_be_learned_that_the_guard_still_suspects() -> None:
    stage = _Stage({BAD})
    stage.run()
    stage.ask(ParkedRequest.LEARN)
    stage.run()
    assert stage.parked() == []
    assert stage.letters() == []
    assert _counts(stage.model.rows()) == _counts(_without(set()))


def test_a_request_waits_for_a_learner_that_starts_later() -> None:
    stage = _Stage({BAD})
    stage.run()
    stage.ask(ParkedRequest.DROP)
    assert stage.parked() == [BAD]
    stage.start()
    stage.run()
    assert stage.parked() == []
    [letter] = stage.letters()
    assert "repeats, parked before this learner owned the partition" in letter.reason


def test_a_parked_batch_that_kafka_deleted_stays_parked_by_name_until_it_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = _Stage({BAD})
    stage.run()
    stage.guard.suspects_at.clear()
    stage.records = [Record(each.source, each.offset, 1, each.value) for each in stage.records]
    del stage.records[: BAD + 2]
    stage.start()
    stage.run()
    assert stage.parked() == [BAD]
    assert "Kafka deleted it" in caplog.text
    assert stage.learner.figures.parked_lost == 1
    stage.ask(ParkedRequest.DROP)
    stage.run()
    assert stage.parked() == []
    [letter] = stage.letters()
    assert letter.reason.startswith("batch of 40 examples quarantined: an operator dropped it")


def test_a_parked_message_of_a_topic_that_was_created_again_can_be_dropped() -> None:
    stage = _Stage()
    mark = parked_mark("earlier topic/0", 3)  # the topic of now has another message at 3
    span = OffsetSpan(mark, 0, parked_value(40, cause=ParkedCause.NUMBERS))
    blob = pack_deltas(
        EntryHeader(stage.spec.width, 0, 0, 0, []), RowDeltas.empty(stage.spec.width)
    )
    buckets = range(stage.model.shape.buckets)
    stage.model.store.push([Push(each, (span,), stage.model.nonce(), blob) for each in buckets])
    stage.start()
    stage.run()
    assert [each.mark for each in stage.learner.figures.parked] == [mark]
    assert stage.learner.figures.parked_lost == 1
    assert _counts(stage.model.rows()) == _counts(_without(set()))
    stage.ask(ParkedRequest.DROP)
    stage.run()
    assert stage.parked() == []
    assert "parked because: numbers" in stage.letters()[0].reason
