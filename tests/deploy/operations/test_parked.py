"""An operator lists what is parked, and asks to learn or to drop it."""

from itertools import count

import pytest

from headrace.deploy.errors import BadOption
from headrace.deploy.operations.examples_topic import ExamplesBounds
from headrace.deploy.operations.inspection import survey_json
from headrace.deploy.operations.parked import ask_about, check_parked, parked_text
from headrace.learner.loop.marks.parked_marks import (
    ParkedCause,
    ParkedRequest,
    parked_mark,
    parked_value,
)
from headrace.learner.loop.marks.parked_requests import read_parked
from headrace.pserver.inspection.buckets import BucketSurvey
from headrace.pserver.inspection.model_survey import Survey
from headrace.pserver.memory_store import MemoryStore
from headrace.pserver.store import OffsetSpan, Push, Shape

BUCKETS = 2
SOURCE = "id/3"
LEVEL = ParkedCause.LEVEL_SCORES


@pytest.fixture
def store() -> MemoryStore:
    """Bucket 0 has parked two messages, bucket 1 one of them."""
    nonces = count()
    store = MemoryStore(clock_ms=lambda: 0, nonces=lambda: b"%08d" % next(nonces))
    store.create(Shape("m", BUCKETS, 1, "fingerprint", ""))
    for bucket, parked in ((0, [4, 7]), (1, [7])):
        spans = [OffsetSpan(SOURCE, 0, 9)]
        spans += [
            OffsetSpan(parked_mark(SOURCE, at), 0, parked_value(10 * at, cause=LEVEL))
            for at in parked
        ]
        store.push([Push(bucket, tuple(spans), b"nonce", b"")])
    return store


def test_the_list_names_place_examples_and_buckets(store: MemoryStore) -> None:
    parked = read_parked(store)
    assert parked_text(parked, BUCKETS).splitlines() == [
        "110 examples parked in 2 messages",
        "3@4: 40 examples (level scores), in 1 of 2 buckets",
        "3@7: 70 examples (level scores)",
    ]
    assert parked[0].described() == {
        "topic_id": "id",
        "partition": 3,
        "offset": 4,
        "examples": 40,
        "buckets": 1,
        "request": "nothing",
        "cause": "level scores",
    }


def test_a_request_is_in_the_marks_and_in_the_list(store: MemoryStore) -> None:
    assert [each.offset for each in ask_about(store, ["3@7"], ParkedRequest.DROP)] == [7]
    ask_about(store, ["all"], ParkedRequest.LEARN)
    assert parked_text(read_parked(store), BUCKETS).splitlines()[1:] == [
        "3@4: 40 examples (level scores), in 1 of 2 buckets, to be learned",
        "3@7: 70 examples (level scores), to be dropped",
    ]
    assert [each.request for each in read_parked(store)] == [
        ParkedRequest.LEARN,
        ParkedRequest.DROP,
    ]


@pytest.mark.parametrize("place", ["3@5", "2@7", "seven", "3@", "topic/3@7"])
def test_a_place_where_nothing_is_parked_is_refused(store: MemoryStore, place: str) -> None:
    with pytest.raises(BadOption, match=r"PARTITION@OFFSET|place of a parked message"):
        ask_about(store, [place], ParkedRequest.LEARN)
    assert {each.request for each in read_parked(store)} == {ParkedRequest.NOTHING}


def test_doctor_and_inspect_name_what_is_parked_and_what_kafka_deleted() -> None:
    marks = {SOURCE: 9, parked_mark(SOURCE, 4): parked_value(40)}
    buckets = [BucketSurvey(number, "10.0.0.1:7000", marks=marks) for number in range(BUCKETS)]
    survey = Survey("m", 0.0, [], buckets, None)
    [finding] = check_parked(survey, None)
    assert finding.found == "40 examples parked in 1 message"
    [lost] = check_parked(survey, ExamplesBounds("examples.m", {SOURCE: (5, 9)}))
    assert lost.found == f"{finding.found}, 1 of them lost: Kafka deleted the messages"
    [held] = check_parked(survey, ExamplesBounds("examples.m", {SOURCE: (4, 9)}))
    assert held == finding
    assert list(check_parked(Survey("m", 0.0, [], [], None), None)) == []
    assert [each["offset"] for each in survey_json(survey, None)["parked"]] == [4]


def test_the_age_of_a_bucket_counts_until_the_look_at_that_bucket() -> None:
    found = [
        BucketSurvey(bucket, "h:1", append_ms=append_ms, read_ms=read_ms)
        for bucket, append_ms, read_ms in ((0, 9_000, 9_250), (1, 60_000, 60_500), (2, 0, 60_600))
    ]
    shown = survey_json(Survey("m", 9_100.0, [], found, None), None)["buckets"]
    assert [each["age_s"] for each in shown] == [0.25, 0.5, None]
