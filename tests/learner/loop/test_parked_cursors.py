"""Marks of parked messages: what they say, and what a lost source takes with it."""

from collections.abc import Mapping

import numpy as np

from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.marks.parked_marks import (
    ParkedCause,
    ParkedMessage,
    ParkedRequest,
    parked_mark,
    parked_messages,
    parked_request,
    parked_value,
)
from headrace.learner.loop.marks.topic_marks import offsets_in, topic_of
from headrace.pserver.store import BucketAnswer, OffsetSpan

EXAMPLES = 5
SOURCE = "id-of-topic/0"


def _answer(bucket: int, marks: Mapping[str, int]) -> BucketAnswer:
    return BucketAnswer(bucket, 0, b"", b"", marks, 0)


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
