"""A recreated topic of examples never loses or double-counts examples silently."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from headrace.ingest.errors import DamagedMessage, ExamplesMissing
from headrace.ingest.examples.batch import pack, unpack
from headrace.ingest.examples.damaged_messages import DamagedMessages
from headrace.ingest.kafka.fakes import ListReader
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.source_order import OrderPatience
from headrace.learner.errors import BucketsBehind, LogTruncated, MarkOutsideTopic, TopicMadeAgain
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.pacing import LearnerPacing
from headrace.pserver.store import BucketAnswer, OffsetSpan
from tests.learner.streams import random_examples, random_spec

SOURCE = Source("examples.test", 0)
RECORDS = 10


class Scenery:
    """One partition of some records, and a topic that can be made again under the reader."""

    def __init__(
        self,
        identity: str = "old",
        accept_topic: str = "",
        *,
        accept_gap: bool = False,
        skip_damaged: tuple[str, ...] = (),
    ) -> None:
        dice = np.random.default_rng(1)
        spec = random_spec(dice, "immediate", statistics=False)
        self.reader = ListReader({SOURCE: []})
        self.numbers = [0]  # of the first example of each batch
        for _ in range(RECORDS):
            batch = random_examples(dice, spec, 2, closed=False)
            self.reader.append(SOURCE, pack(replace(batch, before=self.numbers[-1])))
            self.numbers.append(self.numbers[-1] + len(batch))
        self.identity = identity
        self.asked = 0
        self.reader.topic_id = self._topic_id  # type: ignore[method-assign]
        self.cursors = Cursors()
        self.messages = DamagedMessages(skip_damaged)
        self.intake = ExampleQueue(
            self.reader,
            self.cursors,
            partial(self.messages.decoded, decode=partial(unpack, fields=spec.fields)),
            label_delay_ms=0,
            pace=LearnerPacing(patience=OrderPatience(0, 0), ahead_limit=100),
            steady_ms=lambda: 0,
            accept_topic=accept_topic,
            accept_gap=accept_gap,
        )
        self.intake.poll(0.0)

    def _topic_id(self, topic: str) -> str:
        assert topic == SOURCE.topic
        self.asked += 1
        return self.identity

    def begin(self, *marks: dict[str, int]) -> None:
        """Begin with the marks of so many buckets."""
        self.intake.begin([BucketAnswer(b, 1, b"", b"", m, 0) for b, m in enumerate(marks)])

    def learn(self) -> None:
        """Take in and learn what there is."""
        self.intake.poll(0.0)
        while window := self.intake.next_window(1):
            for batch in window:
                self.intake.skip_past(batch)

    def read_refused_push_again(self, bucket: int, marks: dict[str, int]) -> None:
        self.cursors.discard(bucket, marks, None)
        self.intake.read_again(["old/0"])

    def damage(self, offset: int) -> None:
        records = self.reader.records[SOURCE]
        records[offset] = records[offset]._replace(value=records[offset].value[:-200])

    def delete_before(self, first: int) -> None:
        """Let retention take the records before `first`."""
        bounds = self.reader.bounds
        self.reader.bounds = lambda source, reached=0: (first, bounds(source)[1])  # type: ignore[method-assign]


RESTORED = {"old/0": 4}
GONE_ON = {"old/0": 7, "new/0": 3}


@pytest.mark.parametrize(
    ("accept_topic", "identity", "marks", "words"),
    [
        (
            *("", "new", [{"old/0": 7, "old/1": 3}, {"old/0": 4, "old/1": 3}]),
            (
                "examples.test: expected the topic with identity old, got new",
                "old/0 up to offset 7, some buckets only up to 4",
                "old/1 up to offset 3.",
                "start the learner once with `--accept-topic new`",
                "`headrace pserver drop`, then `headrace pserver init`",
            ),
        ),
        ("new", "newest", [{"old/0": 7}, {"old/0": 7}], ("identity old, got newest",)),
        (
            *("", "new", [GONE_ON, RESTORED, GONE_ON]),
            (
                "examples.test: expected buckets that have learned all of the topic before new",
                "bucket 1 has learned old/0 up to offset 4, others up to 7",
                "start the learner once with `--accept-topic new`",
            ),
        ),
        ("", "new", [GONE_ON, {}], ("bucket 1 has learned old/0 up to offset 0, others",)),
        (
            *("", "new", [GONE_ON | {"old/1": 9}, {"old/0": 7, "old/1": 2}]),
            ("old/1 up to offset 2, others up to 9",),
        ),
    ],
    ids=[
        "recreated",
        "recreated after the accepted one",
        "a bucket restored from before an accepted topic",
        "a bucket made empty after an accepted topic",
        "a gap in a partition without new examples",
    ],
)
def test_a_topic_that_lacks_what_buckets_lack_is_refused_with_the_gap_and_the_remedy(
    accept_topic: str, identity: str, marks: list[dict[str, int]], words: tuple[str, ...]
) -> None:
    expected = BucketsBehind if GONE_ON.items() <= marks[0].items() else TopicMadeAgain
    with pytest.raises(expected) as refusal:
        Scenery(identity, accept_topic).begin(*marks)
    for part in words:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("accept_topic", "marks", "resumes"),
    [
        pytest.param("", [{}, {}], 0, id="a model without examples"),
        pytest.param("", [{"new/0": 7}, {"new/0": 4}], 4, id="the topic that was learned from"),
        pytest.param("new", [{"old/0": 7}, {"old/0": 7}], 0, id="accepted"),
        pytest.param("new", [GONE_ON, RESTORED], 0, id="accepted, with a bucket behind"),
        pytest.param("", [{"old/0": 7, "new/1": 2}, {"old/0": 7}], 0, id="begun in one bucket"),
        pytest.param("", [GONE_ON, {"old/0": 7}], 0, id="a learner died between two answers"),
        pytest.param("", [GONE_ON, {"old/0": 4, "new/0": 1}], 1, id="a gap that was accepted"),
        pytest.param(
            *("", [GONE_ON | {"old/1": 5}, {"old/0": 7, "old/1": 3, "new/0": 3}], 3),
            id="a gap that was accepted, in a partition without new examples",
        ),
        pytest.param("", [GONE_ON, {"old/0": 7, "new/0": 1}], 1, id="restored from after it"),
        pytest.param("", [{"new/0": 3}, {}], 0, id="without an earlier topic"),
    ],
)
def test_a_learner_begins_where_the_topic_holds_what_buckets_lack(
    accept_topic: str, marks: list[dict[str, int]], resumes: int
) -> None:
    scenery = Scenery("new", accept_topic)
    scenery.begin(*marks)
    assert scenery.cursors.resume_at("new/0") == resumes


def test_the_topic_id_is_compared_once_after_examples_were_learned() -> None:
    scenery = Scenery()
    scenery.begin({}, {})
    scenery.asked = 0
    scenery.intake.check_topics()
    assert scenery.asked == 0
    scenery.learn()
    for _ in range(3):
        scenery.intake.check_topics()
    assert scenery.asked == 1


def test_a_topic_recreated_with_as_many_messages_is_noticed_without_new_ones() -> None:
    scenery = Scenery()
    scenery.begin({"old/0": RECORDS}, {"old/0": RECORDS})
    scenery.learn()
    scenery.intake.check_topics()
    scenery.identity = "new"
    scenery.intake.check_topics()  # nothing is there to be pushed
    with pytest.raises(TopicMadeAgain, match="identity old, got new"):
        scenery.intake.check_assigned_topics(0)


def test_examples_of_a_recreated_topic_are_not_pushed_after_a_rebalance() -> None:
    scenery = Scenery(accept_topic="new")
    scenery.begin({"old/0": 4}, {"old/0": 4})
    scenery.identity = "new"
    scenery.learn()
    scenery.reader.lose(SOURCE)
    scenery.reader.gain(SOURCE)
    scenery.intake.poll(0.0)
    scenery.begin({"old/0": 4}, {"old/0": 4})
    scenery.learn()
    with pytest.raises(TopicMadeAgain, match="identity old, got new"):
        scenery.intake.check_topics()


@pytest.mark.parametrize("cut_at", [RECORDS - 4, 1])
def test_a_topic_that_lost_learned_examples_and_grew_again_is_refused(cut_at: int) -> None:
    scenery = Scenery()
    scenery.reader.cut[SOURCE] = cut_at
    marks = {"old/0": RECORDS - 3, "old/0@epoch": 5}
    with pytest.raises(LogTruncated) as refusal:
        scenery.begin({"old/0": 2, "old/0@epoch": 5}, marks)
    for part in (
        "examples.test/0 before offset 7",
        "start the learner once with `--accept-topic old`",
        "unclean election",
    ):
        assert part in str(refusal.value)
    accepted = Scenery(accept_topic="old")
    accepted.reader.cut[SOURCE] = cut_at
    accepted.begin(marks, marks)
    assert accepted.cursors.resume_at("old/0") == RECORDS - 3


@pytest.mark.parametrize(
    "marks",
    [
        pytest.param({"old/0": 6, "old/0@epoch": 5}, id="cut where nothing was learned"),
        pytest.param({"old/0": 8}, id="marks of an older headrace, without epochs"),
        pytest.param({}, id="a new model"),
    ],
)
def test_a_topic_that_holds_all_learned_examples_begins(marks: dict[str, int]) -> None:
    scenery = Scenery()
    scenery.reader.cut[SOURCE] = 6
    scenery.begin(marks, marks)
    assert scenery.cursors.resume_at("old/0") == marks.get("old/0", 0)


def test_a_push_carries_the_leader_epoch_of_its_examples() -> None:
    scenery = Scenery()
    records = scenery.reader.records[SOURCE]
    records[:] = [record._replace(leader_epoch=4 + record.offset // 8) for record in records]
    scenery.begin({}, {})
    scenery.learn()
    spans = {span.source: (span.start, span.stop) for span in scenery.cursors.spans(1)}
    assert spans == {"old/0": (0, RECORDS), "old/0@epoch": (0, 6)}


def test_an_accepted_gap_is_skipped_in_every_bucket_that_lacks_it_and_counted_once() -> None:
    scenery = Scenery()
    scenery.delete_before(6)
    with pytest.raises(MarkOutsideTopic, match=r"examples 4 to 6 were deleted.* `--accept-gap`"):
        scenery.begin({"old/0": 7}, {"old/0": 4})
    scenery = Scenery(accept_gap=True)
    scenery.delete_before(6)
    scenery.begin({"old/0": 7}, {"old/0": 4})
    assert scenery.cursors.spans(0) == ()
    assert scenery.cursors.spans(1) == (OffsetSpan("old/0", 4, 6),)
    assert (scenery.intake.gap_offsets, scenery.intake.committed) == (2, {SOURCE: 6})
    scenery.read_refused_push_again(1, {"old/0": 4})
    assert (scenery.intake.gap_offsets, scenery.cursors.resume_at("old/0")) == (2, 6)


def test_a_damaged_message_is_skipped_and_counted_once_only_if_an_operator_named_it() -> None:
    scenery = Scenery()
    scenery.damage(4)
    scenery.begin({"old/0": 2})
    with pytest.raises(DamagedMessage, match=r"test/0@4: .*--skip-damaged examples.test/0"):
        scenery.learn()
    scenery = Scenery(skip_damaged=("examples.test/0@4", "examples.test/0@5"))
    scenery.damage(4)
    scenery.begin({"old/0": 2})
    scenery.learn()
    assert scenery.cursors.spans(0) == (OffsetSpan("old/0", 2, RECORDS),)
    scenery.read_refused_push_again(0, {"old/0": 2})
    scenery.learn()
    assert scenery.messages.skipped == 1, "the message at offset 5 is sound, so it was learned"


def test_a_message_that_kafka_does_not_deliver_stops_a_learner_that_accepts_no_gap() -> None:
    scenery = Scenery()
    del scenery.reader.records[SOURCE][4:6]
    scenery.begin({"old/0": 2})
    missing = scenery.numbers[6] - scenery.numbers[4]
    with pytest.raises(ExamplesMissing, match=rf"test/0@6: .* with {missing} examples missing"):
        scenery.learn()
    scenery = Scenery(accept_gap=True)
    del scenery.reader.records[SOURCE][4:6]
    scenery.begin({"old/0": 2})
    scenery.learn()
    assert scenery.cursors.spans(0) == (OffsetSpan("old/0", 2, RECORDS),)


def test_a_joiner_that_counts_from_zero_again_and_batches_without_a_number_are_no_gap() -> None:
    scenery = Scenery()
    records = scenery.reader.records[SOURCE]
    unnumbered = records[5].value.replace(b"before", b"foreby")  # as an older headrace wrote it
    for offset, value in ((4, records[0].value), (5, unnumbered), (6, records[9].value)):
        records[offset] = records[offset]._replace(value=value)
    scenery.begin({"old/0": 2})
    scenery.learn()
    assert scenery.cursors.spans(0) == (OffsetSpan("old/0", 2, RECORDS),)


def test_a_mark_beyond_the_end_of_the_topic_is_refused_with_accept_gap_too() -> None:
    scenery = Scenery(accept_gap=True)
    with pytest.raises(MarkOutsideTopic, match="the topic was truncated") as refusal:
        scenery.begin({"old/0": RECORDS + 1})
    assert "--accept-gap" not in str(refusal.value)
