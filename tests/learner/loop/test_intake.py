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
from headrace.learner.errors import (
    BucketsBehind,
    LogTruncated,
    MarkOutsideTopic,
    TopicMadeAgain,
)
from headrace.learner.loop.cursors import Cursors
from headrace.learner.loop.example_queue import ExampleQueue
from headrace.learner.loop.pacing import LearnerPacing
from headrace.pserver.rows.deltas import EntryHeader, RowDeltas
from headrace.pserver.rows.deltas import pack as pack_entry
from headrace.pserver.store import BucketAnswer, OffsetSpan, Push
from tests.learner.in_memory import TOPIC, InMemoryModel, records_of
from tests.learner.streams import random_examples, random_spec

SOURCE = Source("examples.test", 0)
RECORDS = 10


class Scenery:
    """One partition of some records, and a topic that can be made again under the reader."""

    def __init__(
        self,
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
        self.identity = "old"
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


def test_a_model_without_examples_starts_with_any_topic() -> None:
    scenery = Scenery()
    scenery.begin({}, {})
    assert scenery.cursors.resume_at("old/0") == 0


def test_a_model_continues_with_the_topic_it_has_learned_from() -> None:
    scenery = Scenery()
    scenery.begin({"old/0": 7}, {"old/0": 4})
    assert scenery.cursors.resume_at("old/0") == 4


def test_a_recreated_topic_is_refused_with_both_ids_the_gap_and_the_remedy() -> None:
    scenery = Scenery()
    scenery.identity = "new"
    with pytest.raises(TopicMadeAgain) as refusal:
        scenery.begin({"old/0": 7, "old/1": 3}, {"old/0": 4, "old/1": 3})
    for part in (
        "examples.test: expected the topic with identity old, got new",
        "old/0 up to offset 7, some buckets only up to 4",
        "old/1 up to offset 3.",
        "start the learner once with `--accept-topic new`",
        "`headrace pserver drop`, then `headrace pserver init`",
    ):
        assert part in str(refusal.value)


def test_an_accepted_recreated_topic_is_learned_from_its_beginning() -> None:
    scenery = Scenery(accept_topic="new")
    scenery.identity = "new"
    scenery.begin({"old/0": 7}, {"old/0": 7})
    assert scenery.cursors.resume_at("new/0") == 0


def test_an_accepted_topic_does_not_accept_the_next_recreated_one() -> None:
    scenery = Scenery(accept_topic="new")
    scenery.identity = "newest"
    with pytest.raises(TopicMadeAgain, match="identity old, got newest"):
        scenery.begin({"old/0": 7}, {"old/0": 7})


def test_a_topic_already_learned_from_needs_no_accept_topic() -> None:
    scenery = Scenery()
    scenery.identity = "new"
    scenery.begin({"old/0": 7, "new/1": 2}, {"old/0": 7})  # the other partition, in one bucket
    assert scenery.cursors.resume_at("new/0") == 0


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


def test_examples_of_a_topic_recreated_while_read_are_not_pushed() -> None:
    scenery = Scenery()
    scenery.begin({"old/0": 4}, {"old/0": 4})
    scenery.identity = "new"
    scenery.learn()
    with pytest.raises(TopicMadeAgain, match="identity old, got new"):
        scenery.intake.check_topics()


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


RESTORED = {"old/0": 4}
GONE_ON = {"old/0": 7, "new/0": 3}


def test_a_bucket_restored_from_before_an_accepted_topic_is_refused_with_its_gap() -> None:
    scenery = Scenery()
    scenery.identity = "new"
    with pytest.raises(BucketsBehind) as refusal:
        scenery.begin(GONE_ON, RESTORED, GONE_ON)
    for part in (
        "examples.test: expected buckets that have learned all of the topic before new",
        "bucket 1 has learned old/0 up to offset 4, others up to 7",
        "start the learner once with `--accept-topic new`",
    ):
        assert part in str(refusal.value)


def test_a_bucket_made_empty_after_an_accepted_topic_is_refused() -> None:
    scenery = Scenery()
    scenery.identity = "new"
    with pytest.raises(BucketsBehind, match="bucket 1 has learned old/0 up to offset 0, others"):
        scenery.begin(GONE_ON, {})


def test_a_gap_in_a_partition_without_new_examples_is_refused_too() -> None:
    scenery = Scenery()
    scenery.identity = "new"
    with pytest.raises(BucketsBehind, match="old/1 up to offset 2, others up to 9"):
        scenery.begin(GONE_ON | {"old/1": 9}, RESTORED | {"old/0": 7, "old/1": 2})


def test_buckets_behind_are_accepted_by_the_id_of_the_topic() -> None:
    scenery = Scenery(accept_topic="new")
    scenery.identity = "new"
    scenery.begin(GONE_ON, RESTORED)
    assert scenery.cursors.resume_at("new/0") == 0


@pytest.mark.parametrize(
    "marks",
    [
        pytest.param([GONE_ON, {"old/0": 7}], id="a learner died between the answers of two"),
        pytest.param([GONE_ON, {"old/0": 4, "new/0": 1}], id="a gap that was accepted"),
        pytest.param(
            [GONE_ON | {"old/1": 5}, {"old/0": 7, "old/1": 3, "new/0": 3}],
            id="a gap that was accepted, in a partition without new examples",
        ),
        pytest.param([GONE_ON, {"old/0": 7, "new/0": 1}], id="restored from after it"),
        pytest.param([{"new/0": 3}, {}], id="without an earlier topic"),
    ],
)
def test_buckets_that_lack_nothing_of_an_earlier_topic_begin(marks: list[dict[str, int]]) -> None:
    scenery = Scenery()
    scenery.identity = "new"
    scenery.begin(*marks)


def test_a_bucket_restored_while_a_learner_runs_is_refused() -> None:
    scenery = Scenery()
    scenery.identity = "new"
    scenery.begin(GONE_ON, GONE_ON)
    answers = [BucketAnswer(b, 1, b"", b"", m, 0) for b, m in enumerate([GONE_ON, RESTORED])]
    with pytest.raises(BucketsBehind):
        scenery.intake.check_marks(answers)


def test_a_running_learner_refuses_a_bucket_from_before_an_accepted_topic() -> None:
    dice = np.random.default_rng(2)
    spec = random_spec(dice, "immediate", statistics=False)
    model = InMemoryModel(spec)
    batches = [random_examples(dice, spec, 3, closed=False) for _ in range(6)]
    empty = pack_entry(EntryHeader(spec.width, 0, 0, 0, []), RowDeltas.empty(spec.width))
    later = OffsetSpan("earlier/0", 7, 9), OffsetSpan(f"id-of-{TOPIC}/0", 0, 1)
    for bucket in range(model.shape.buckets):
        model.store.push([Push(bucket, (OffsetSpan("earlier/0", 0, 7),), b"first 8 ", empty)])
    earlier = model.store.checkpoint(0)
    for bucket in range(model.shape.buckets):
        model.store.push([Push(bucket, later, b"second 8", empty)])
    learner = model.learner(records_of(batches), LearnerPacing())
    learner.step(0.0)
    model.store.revert(0, earlier)
    model.now_ms += 5_000
    with pytest.raises(BucketsBehind, match="bucket 0 has learned earlier/0 up to offset 7"):
        learner.step(0.0)


def test_a_push_carries_the_leader_epoch_of_its_examples() -> None:
    scenery = Scenery()
    records = scenery.reader.records[SOURCE]
    records[:] = [record._replace(leader_epoch=4 + record.offset // 8) for record in records]
    scenery.begin({}, {})
    scenery.learn()
    spans = {span.source: (span.start, span.stop) for span in scenery.cursors.spans(1)}
    assert spans == {"old/0": (0, RECORDS), "old/0@epoch": (0, 6)}


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


def test_a_learner_stores_leader_epochs_with_its_marks() -> None:
    dice = np.random.default_rng(3)
    spec = random_spec(dice, "immediate", statistics=False)
    model = InMemoryModel(spec)
    batches = [random_examples(dice, spec, 3, closed=False) for _ in range(6)]
    learner = model.learner(
        [r._replace(leader_epoch=2) for r in records_of(batches)], LearnerPacing()
    )
    for _ in range(50):
        model.now_ms += 500
        learner.step(0.0)
    name = f"id-of-{TOPIC}/0"
    assert [dict(each.marks) for each in model.answers()] == [
        {name: len(batches), f"{name}@epoch": 3}
    ] * model.shape.buckets


def test_an_accepted_topic_is_used_up_once_every_bucket_has_learned_from_it() -> None:
    scenery = Scenery(accept_topic="new")
    scenery.identity = "new"
    scenery.begin(RESTORED, RESTORED)
    scenery.learn()
    for bucket in range(2):
        scenery.cursors.acknowledge(bucket, (OffsetSpan("new/0", 0, 1),))
        scenery.intake.commit()
    answers = [BucketAnswer(b, 1, b"", b"", m, 0) for b, m in enumerate([GONE_ON, RESTORED])]
    with pytest.raises(BucketsBehind):
        scenery.intake.check_marks(answers)


def _delete_before(scenery: Scenery, first: int) -> None:
    """Let retention take the records before `first`."""
    held = scenery.reader.bounds
    scenery.reader.bounds = lambda source, reached=0: (first, held(source)[1])  # type: ignore[method-assign]


def test_examples_that_retention_took_are_refused_and_the_message_names_the_flag() -> None:
    scenery = Scenery()
    _delete_before(scenery, 6)
    with pytest.raises(MarkOutsideTopic, match=r"examples 4 to 6 were deleted.* `--accept-gap`"):
        scenery.begin({"old/0": 7}, {"old/0": 4})


def test_an_accepted_gap_is_skipped_in_every_bucket_that_lacks_it_and_counted_once() -> None:
    scenery = Scenery(accept_gap=True)
    _delete_before(scenery, 6)
    scenery.begin({"old/0": 7}, {"old/0": 4})
    assert scenery.cursors.spans(0) == ()
    assert scenery.cursors.spans(1) == (OffsetSpan("old/0", 4, 6),)
    assert (scenery.intake.gap_offsets, scenery.intake.committed) == (2, {SOURCE: 6})
    scenery.cursors.discard(1, {"old/0": 4}, None)  # the push was refused
    scenery.intake.read_again(["old/0"])
    assert (scenery.intake.gap_offsets, scenery.cursors.resume_at("old/0")) == (2, 6)


def _damage(scenery: Scenery, offset: int) -> None:
    records = scenery.reader.records[SOURCE]
    records[offset] = records[offset]._replace(value=records[offset].value[:-200])


def test_a_damaged_message_stops_the_learner_and_the_error_names_the_message_and_the_way_on() -> (
    None
):
    scenery = Scenery()
    _damage(scenery, 4)
    scenery.begin({"old/0": 2})
    with pytest.raises(
        DamagedMessage, match=r"examples.test/0@4: .*--skip-damaged examples.test/0"
    ):
        scenery.learn()


def test_a_damaged_message_that_an_operator_named_is_skipped_and_counted_once() -> None:
    scenery = Scenery(skip_damaged=("examples.test/0@4", "examples.test/0@5"))
    _damage(scenery, 4)
    scenery.begin({"old/0": 2})
    scenery.learn()
    assert scenery.cursors.spans(0) == (OffsetSpan("old/0", 2, RECORDS),)
    scenery.cursors.discard(0, {"old/0": 2}, None)  # the push was refused
    scenery.intake.read_again(["old/0"])
    scenery.learn()
    assert scenery.messages.skipped == 1, "the message at offset 5 is sound, so it was learned"


def test_a_message_that_kafka_does_not_deliver_stops_the_learner_with_a_count() -> None:
    scenery = Scenery()
    del scenery.reader.records[SOURCE][4:6]
    scenery.begin({"old/0": 2})
    missing = scenery.numbers[6] - scenery.numbers[4]
    with pytest.raises(ExamplesMissing, match=rf"test/0@6: .* with {missing} examples missing"):
        scenery.learn()


def test_an_old_end_from_a_broker_that_wakes_up_does_not_stop_the_learner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenery = Scenery()

    def bounds(_: Source, reached: int = 0) -> tuple[int, int]:
        return 0, max(4, reached)  # asked again until the end is where it was

    monkeypatch.setattr(scenery.reader, "bounds", bounds)
    scenery.begin({"old/0": 6})
    assert scenery.cursors.resume_at("old/0") == 6


def test_an_operator_lets_a_learner_go_on_without_the_missing_examples() -> None:
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
