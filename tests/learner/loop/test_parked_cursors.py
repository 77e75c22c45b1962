"""A bucket has learned exactly the messages that its marks say, after losses and with zombies."""

import random
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.marks.parked_marks import (
    ParkedCause,
    ParkedMessage,
    ParkedRequest,
    is_parked_mark,
    parked_mark,
    parked_messages,
    parked_place,
    parked_request,
    parked_value,
)
from headrace.learner.loop.marks.topic_marks import offsets_in, topic_of
from headrace.pserver.push_fence import marks_after, passes_fence
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push

BUCKETS, MESSAGES, EXAMPLES = 3, 6, 5
SOURCE = "id-of-topic/0"


def _answer(bucket: int, marks: Mapping[str, int]) -> BucketAnswer:
    return BucketAnswer(bucket, 0, b"", b"", marks, 0)


class _Bucket:
    """Marks, and how often each message was learned."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.learned: Counter[int] = Counter()

    def push(self, push: Push, learned: Counter[int]) -> None:
        if passes_fence(push, self.marks):
            self.marks = marks_after(push, self.marks)
            self.learned = self.learned + learned

    def check(self) -> None:
        passed = self.marks.get(SOURCE, 0)
        parked = {parked_place(name)[1] for name in self.marks if is_parked_mark(name)}
        assert parked <= set(range(passed))
        assert self.learned == Counter(set(range(passed)) - parked)


class _Learner:
    """The cursors of a learner, what is pending and what flies."""

    def __init__(self, buckets: list[_Bucket], dice: random.Random) -> None:
        self.buckets, self.dice, self.cursors = buckets, dice, Cursors()
        self.pending: list[Counter[int]] = [Counter() for _ in buckets]
        self.flights: dict[int, tuple[Push, Counter[int]]] = {}
        self.cursors.gained(SOURCE, np.array([b.marks.get(SOURCE, 0) for b in buckets]))
        self.cursors.parked.gained(SOURCE, [_answer(n, b.marks) for n, b in enumerate(buckets)])

    def read(self) -> None:
        """Learn or park the next message, or read on behind those that every bucket has."""
        offset = self.cursors.resume_at(SOURCE)
        if offset == MESSAGES:
            return
        if (SOURCE, offset) in self.cursors.parked or self.dice.random() < 0.4:
            active = self.cursors.active(SOURCE, offset)
            self.cursors.parked.park(SOURCE, offset, EXAMPLES, active)
        else:
            self._count(offset, self.cursors.active(SOURCE, offset))
        self.cursors.advance(SOURCE, offset + 1)

    def learn_parked(self) -> None:
        if found := self.cursors.parked.messages():
            offset = self.dice.choice(found).offset
            self._count(offset, self.cursors.parked.active(SOURCE, offset, BUCKETS))
            self.cursors.parked.end(SOURCE, offset)

    def _count(self, offset: int, active: np.ndarray) -> None:
        for bucket in np.flatnonzero(active):
            self.pending[bucket][offset] += 1

    def push(self) -> None:
        bucket = self.dice.randrange(BUCKETS)
        if bucket not in self.flights:
            if not (spans := self.cursors.spans(bucket)):
                return
            push = Push(bucket, spans, b"", b"")
            self.flights[bucket] = push, self.pending[bucket]
            self.pending[bucket] = Counter()
        push, learned = self.flights[bucket]
        fate = self.dice.random()
        if fate < 0.2:
            return  # the request is lost
        store = self.buckets[bucket]
        store.push(push, learned)
        if fate < 0.4:
            return  # the reply is lost
        answer = _answer(bucket, {s.source: store.marks.get(s.source, 0) for s in push.spans})
        del self.flights[bucket]
        if answer.covers(push.spans):
            self.cursors.acknowledge(bucket, push.spans)
        else:
            self.pending[bucket] = Counter()
            self.cursors.discard(bucket, answer.marks, [s.source for s in push.spans])

    def recheck(self) -> None:
        for bucket in set(range(BUCKETS)) - self.flights.keys():
            marks = self.buckets[bucket].marks
            if not self.cursors.agrees(bucket, marks):
                self.pending[bucket] = Counter()
                self.cursors.discard(bucket, marks, None)

    def undo(self) -> None:
        for bucket in range(BUCKETS):
            flight = self.flights.get(bucket)
            self.cursors.undo(bucket, flight[0].spans if flight else ())
            self.pending[bucket] = Counter()


@pytest.mark.parametrize("seed", range(300))
def test_each_message_counts_once_or_is_parked_with_two_learners_lost_calls_and_failovers(
    seed: int,
) -> None:
    dice = random.Random(seed)
    buckets = [_Bucket() for _ in range(BUCKETS)]
    learners = [_Learner(buckets, dice) for _ in range(2)]
    for _ in range(80):
        place = dice.randrange(2)
        learner = learners[place]
        match dice.randrange(12):
            case 0:
                learners[place] = _Learner(buckets, dice)  # it died
            case 1:
                learner.undo()
            case 2:
                learner.recheck()
            case 3:
                bucket = dice.randrange(BUCKETS)
                kept = [(dict(buckets[bucket].marks), buckets[bucket].learned.copy())]
                learner.push()
                buckets[bucket].marks, buckets[bucket].learned = kept[0]  # a failover loses it
            case 4 | 5 | 6:
                learner.read()
            case 7:
                learner.learn_parked()
            case _:
                learner.push()
        for each in buckets:
            each.check()
    last = _Learner(buckets, dice)
    for _ in range(1000):
        last.recheck()
        last.learn_parked()
        last.read()
        last.push()
    assert [b.marks for b in buckets] == [{SOURCE: MESSAGES}] * BUCKETS, f"seed {seed}"
    assert [b.learned for b in buckets] == [Counter(range(MESSAGES))] * BUCKETS, f"seed {seed}"


def test_marks_list_what_is_parked_over_all_buckets() -> None:
    mark = parked_mark(SOURCE, 7)
    asked = parked_value(EXAMPLES, ParkedRequest.DROP)
    marks = [{SOURCE: 9, mark: parked_value(EXAMPLES)}, {SOURCE: 9, mark: asked}, {SOURCE: 3}]
    found = parked_messages(marks)
    assert found == [ParkedMessage(SOURCE, 7, EXAMPLES, ParkedRequest.DROP, 2)]
    assert found[0].mark == mark
    assert parked_request(asked) is ParkedRequest.DROP
    assert offsets_in(marks[0]) == {SOURCE: 9}
    assert topic_of(mark) == "id-of-topic"


def test_a_mark_keeps_its_cause_beside_a_request_and_marks_without_one_stay_readable() -> None:
    mark, most = parked_mark(SOURCE, 7), (1 << 46) - 1
    for cause in ParkedCause:
        value = parked_value(most, ParkedRequest.DROP, cause)
        assert value < 1 << 53, "Lua's numbers are exact up to there"
        [found] = parked_messages([{mark: value}])
        assert found == ParkedMessage(SOURCE, 7, most, ParkedRequest.DROP, 1, cause)
    [older] = parked_messages([{mark: EXAMPLES << 2 | ParkedRequest.LEARN}])
    assert older == ParkedMessage(SOURCE, 7, EXAMPLES, ParkedRequest.LEARN, 1)
    [newer] = parked_messages([{mark: parked_value(EXAMPLES) | 31 << 48}])
    assert newer.cause is ParkedCause.UNKNOWN


def test_a_source_that_is_lost_takes_its_parked_messages_with_it() -> None:
    cursors = Cursors()
    marks = {SOURCE: 9, parked_mark(SOURCE, 7): parked_value(EXAMPLES)}
    cursors.gained(SOURCE, np.array([9]))
    cursors.parked.gained(SOURCE, [_answer(0, marks)])
    assert [each.offset for each in cursors.parked.messages()] == [7]
    cursors.lost(SOURCE)
    assert cursors.parked.messages() == ()
    assert (SOURCE, 7) not in cursors.parked
    assert cursors.spans(0) == ()


def test_a_source_that_is_lost_while_a_parked_message_is_pending_still_pushes_it() -> None:
    cursors = Cursors()
    value = parked_value(EXAMPLES)
    cursors.gained(SOURCE, np.array([9]))
    cursors.parked.gained(SOURCE, [_answer(0, {SOURCE: 9, parked_mark(SOURCE, 7): value})])
    cursors.parked.end(SOURCE, 7)
    cursors.lost(SOURCE)
    assert cursors.spans(0) == (OffsetSpan(parked_mark(SOURCE, 7), value, 0),)
    cursors.acknowledge(0, cursors.spans(0))
    assert cursors.spans(0) == ()
